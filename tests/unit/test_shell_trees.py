"""Stops of process trees of random shape at random moments: nobody survives, by a witness that the trees cannot deny."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from core.call import Outcome
from core.cancellation import Cancelled
from core.tool.shell import Shell
from tests.support.api_client import PATIENCE_S, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import seen_at, start_plan
from tests.support.servers import ServerProcess, wait_until
from tests.support.shell_kit import ShellCall, is_zombie
from tests.support.shell_trees import ENDS, STARTS, WAYS, Node, Witness, random_tree

#: So many run always, the others with the long suites.
QUICK, ALL = 12, 200
PR_GET_CHILD_SUBREAPER = 37

SEEDS = [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.slow) for seed in range(ALL)]
#: When the stop comes: how many of so many processes have told of themselves; None: some milliseconds after the start.
MOMENTS: dict[str, Callable[[random.Random, int], int | None]] = {
    "before it begins": lambda draw, count: 0,
    "while it starts": lambda draw, count: None,
    "while it grows": lambda draw, count: draw.randint(1, count),
    "when all of it runs": lambda draw, count: count,
}


@pytest.fixture
def witnesses(tmp_path: Path) -> Iterator[Callable[[Node], Witness]]:
    """Makes witnesses, each with a folder of its own."""
    with ExitStack() as stack:

        def make(tree: Node) -> Witness:
            witness = Witness(tmp_path / f"tree{len(list(tmp_path.iterdir()))}", tree)
            stack.callback(witness.close)
            return witness

        yield make


def _stop_at(moment: str, draw: random.Random, call: ShellCall, witness: Witness) -> float:
    """Start the call and stop it at its moment; when that was."""
    count = MOMENTS[moment](draw, sum(1 for _ in witness.tree))
    if count == 0:
        call.request_stop()
        call.start()
        return call.stopped_at
    call.start()
    if count is None:
        time.sleep(draw.uniform(0, 0.06))  # a moment, not a wait for something: the start takes about so long
    else:
        witness.wait_notes(count)
    call.request_stop()
    return call.stopped_at


# -- the witness itself ----------------------------------------------------------------------


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("end", ["sleeps", "gives up what it has inherited"])
def test_the_witness_sees_who_outlives_the_shell(
    witnesses: Callable[[Node], Witness], tmp_path: Path, start: str, end: str
) -> None:
    witness = witnesses(Node("the shell", "plain", "sleeps", (Node(start, "goes elsewhere", end),)))
    shell = subprocess.Popen(["/bin/sh", "-c", witness.command], cwd=tmp_path)
    assert witness.wait_notes(2)
    shell.kill()
    shell.wait(PATIENCE_S)
    deserters = [pid for pid, _ in witness.notes() if pid != shell.pid]

    assert any(line.startswith(f"{deserters[0]}: ") for line in witness.survivors())
    while left := witness.survivors():
        for pid in re.findall(r"^(\d+): ", "\n".join(left), re.MULTILINE):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    assert is_zombie(deserters[0])


def test_the_trees_have_every_shape() -> None:
    nodes = [node for seed in range(ALL) for node in random_tree(random.Random(seed))]

    assert {node.start for node in nodes} == {*STARTS, "the shell"}
    assert {node.way for node in nodes} == set(WAYS)
    assert {node.end for node in nodes} == set(ENDS)


# -- a stop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_of_a_random_tree_survives_a_stop_at_a_random_moment(
    witnesses: Callable[[Node], Witness], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    witness, grace_s = witnesses(random_tree(draw)), draw.choice((0.1, 0.3, 1.0))
    (moment,) = draw.choices(list(MOMENTS), weights=(1, 3, 3, 3))
    shown = f"seed {seed}, stopped {moment}, grace {grace_s} s:\n{witness.tree.shown()}"
    call = ShellCall(Shell(tmp_path, {"PATH": os.environ["PATH"]}, grace_s=grace_s), witness.command)
    stopped_at = _stop_at(moment, draw, call, witness)
    call.wait_end()
    took_s = time.monotonic() - stopped_at
    survivors = witness.survivors()

    assert survivors == [], shown
    assert took_s < grace_s + 1, shown
    if call.error is not None:
        assert isinstance(call.error, Cancelled), shown
        assert (call.run.outcome, witness.notes()) == (Outcome.NOT_STARTED, []), shown
    else:
        # None: the command was over before the stop came.
        assert call.run.outcome in (Outcome.KILLED, Outcome.ALREADY_DONE, None), shown


def test_twenty_random_trees_that_are_stopped_at_once_leave_nobody(
    witnesses: Callable[[Node], Witness], tmp_path: Path
) -> None:
    draw = random.Random(20)
    all_witnesses = [witnesses(random_tree(draw, can_leave=False)) for _ in range(20)]
    shell = Shell(tmp_path, {"PATH": os.environ["PATH"]}, grace_s=0.3)
    calls = [ShellCall(shell, witness.command).start() for witness in all_witnesses]
    for witness in all_witnesses:
        assert witness.wait_notes(sum(1 for _ in witness.tree))
    for call in calls:
        call.request_stop()
    for call, witness in zip(calls, all_witnesses, strict=True):
        assert call.answer().interrupted
        assert witness.survivors() == [], witness.tree.shown()
        assert call.run.outcome is Outcome.KILLED


# -- the server dies, or lives on ------------------------------------------------------------


def _tool_goal(goal_id: str, command: str) -> dict[str, Any]:
    return {"id": goal_id, "tool": {"name": "shell", "arguments": {"command": command}}}


def test_kill_9_of_the_server_amid_twenty_random_trees_leaves_nobody(
    models: ModelServer, witnesses: Callable[[Node], Witness], tmp_path_factory: pytest.TempPathFactory, key: str
) -> None:
    draw = random.Random(9)
    all_witnesses = [witnesses(random_tree(draw, can_leave=False)) for _ in range(20)]
    with ServerProcess(tmp_path_factory.mktemp("server"), models.url, TOOLS_ALLOWED="shell") as server:
        goals = [_tool_goal(f"tree{number}", witness.command) for number, witness in enumerate(all_witnesses)]
        run = start_plan(server.api(), *goals)
        for witness in all_witnesses:
            assert witness.wait_notes(sum(1 for _ in witness.tree))
        server.kill()
        deadline = time.monotonic() + 5
        for witness in all_witnesses:
            witness.wait_nobody(deadline - time.monotonic())
        server.start()
        five_checks(seen_at(server, run), models, key)


def test_the_server_adopts_nobody_s_orphans(
    models: ModelServer, shell_runner: ServerProcess, tmp_path: Path, key: str
) -> None:
    """What loses its supervisor and has no mark goes to who adopts orphans here, and that is not the server."""
    note = tmp_path / "parents"
    look = "read -r pid name state parent rest < /proc/self/stat"
    # It outlives its supervisor for as long as the kernel needs to give it another parent, and tells of that one.
    (tmp_path / "orphan.sh").write_text(
        f"kill -9 $1; while {look}; [ $parent = $1 ]; do :; done\necho $parent > {note}.new; mv {note}.new {note}\n"
    )
    command = f"(env -i setsid sh {tmp_path}/orphan.sh $PPID &); sleep 600"
    run = start_plan(shell_runner.api(key), _tool_goal("orphan", command))
    run.wait_parked()
    wait_until(note.exists, "the orphan has told who its new parent is")

    assert int(note.read_text()) not in _family(shell_runner)
    five_checks(run, models, key)


def test_the_server_s_process_takes_in_no_exit_status_that_is_not_its_own(tmp_path: Path) -> None:
    prctl, is_subreaper = ctypes.CDLL(None).prctl, ctypes.c_int(-1)
    child = subprocess.Popen(["/bin/sh", "-c", "read line; exit 7"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.close()  # it ends now, and stays a zombie while calls come and go
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    for command in ("true", "sleep 600 & exit 3", "(setsid sleep 600 &); kill -9 $PPID; sleep 600"):
        ShellCall(Shell(tmp_path), command).start().answer()
        call = ShellCall(Shell(tmp_path), "echo ready; sleep 600").start().wait_said("ready")
        call.stop()

    assert prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper), 0, 0, 0) == 0
    assert is_subreaper.value == 0
    assert child.wait(PATIENCE_S) == 7


@pytest.fixture(scope="module")
def shell_runner(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the shell that no test here ends."""
    with ServerProcess(tmp_path_factory.mktemp("shell-runner"), models.url, TOOLS_ALLOWED="shell") as server:
        yield server


def _family(server: ServerProcess) -> list[int]:
    """The pids of the server's processes."""
    assert server.process is not None
    pid = server.process.pid
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def test_a_stop_over_http_of_a_call_with_a_random_tree_leaves_nobody(
    models: ModelServer, shell_runner: ServerProcess, witnesses: Callable[[Node], Witness], key: str
) -> None:
    all_witnesses = [witnesses(random_tree(random.Random(seed), can_leave=False)) for seed in range(5)]
    goals = [_tool_goal(f"tree{number}", witness.command) for number, witness in enumerate(all_witnesses)]
    run: Run = start_plan(shell_runner.api(key), *goals)
    for witness in all_witnesses:
        assert witness.wait_notes(sum(1 for _ in witness.tree))
    answer = run.cancel(wait_ms=30_000)

    assert answer["parked"] is True
    assert {item["outcome"] for item in answer["receipt"] if item["kind"] == "tool"} == {"killed"}
    assert [witness.survivors() for witness in all_witnesses] == [[]] * 5
    five_checks(run, models, key)
