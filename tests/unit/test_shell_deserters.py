"""Whatever a command starts ends with the call: everything that tries to get away, in each way that a call can end."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.call import Outcome
from core.tool import supervised, supervisor
from core.tool.marked import kill_marked
from tests.support.api_client import PATIENCE_S
from tests.support.shell_kit import Mark, ShellBench, ShellCall, children, leaves_nothing

ROOT = Path(__file__).resolve().parents[2]

LEAVE_GROUP = 'import os; os.setpgid(0, 0); print("ready", flush=True); os.execlp("sleep", "sleep", "MARK")'
#: Each prints "ready" when all of it runs. ``MARK`` stands for the mark.
DESERTERS = {
    "a plain command": "echo ready; sleep MARK",
    "child, grandchild and background job": "sh -c 'sleep MARK & sh -c \"sleep MARK & echo ready; wait\"' & sleep MARK",
    "background jobs only": "sleep MARK & sleep MARK & echo ready; wait",
    "another process group": f"{sys.executable} -c '{LEAVE_GROUP}' & wait",
    "another session": "setsid sh -c 'echo ready; exec sleep MARK' & sleep MARK",
    "another session and parent": "(setsid sh -c 'sleep MARK & echo ready; sleep MARK' &); sleep MARK",
    "double fork, nohup and new session": "(nohup setsid sh -c '(setsid sh -c \"echo ready; sleep MARK\" &)' &); sleep MARK",
    "an empty environment": "env -i setsid /bin/sh -c 'echo ready; exec /bin/sleep MARK' & sleep MARK",
    "a suspended process": "sh -c 'kill -STOP $$; sleep MARK' & echo ready; sleep MARK",
    "deaf to hangup and interrupt": "trap '' HUP INT QUIT; setsid sleep MARK & echo ready; sleep MARK",
}
#: The same, deaf to TERM: these end by KILL.
DEAF = {
    "the command itself": "trap '' TERM; echo ready; sleep MARK; sleep MARK",
    "a grandchild": "sh -c \"trap '' TERM; sleep MARK & echo ready; wait\" & sleep MARK",
    "another session and parent": "(setsid sh -c \"trap '' TERM; echo ready; sleep MARK\" &); sleep MARK",
    "something born after TERM": "trap 'setsid sleep MARK & sleep MARK' TERM; echo ready; sleep MARK & wait; wait",
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ShellBench]:
    bench = ShellBench(tmp_path)
    with leaves_nothing():
        yield bench
        assert bench.mark.alive() == []


def marked(bench: ShellBench, command: str) -> str:
    return command.replace("MARK", bench.mark.text)


# -- the kit itself --------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [True, False])
def test_the_kit_finds_what_is_alive_and_what_died_is_not_alive(environment: bool) -> None:
    mark = Mark()
    command = ["sleep", "600"] if environment else ["sleep", mark.text]
    process = subprocess.Popen(command, env=mark.environment() if environment else {"PATH": os.environ["PATH"]})

    assert mark.alive() == [process.pid]
    assert process.pid in children()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert mark.alive() == [], "a zombie is dead"
    assert process.pid in children(), "and still has to be taken in"
    process.wait()
    assert process.pid not in children()


# -- a stop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", DESERTERS.values(), ids=DESERTERS.keys())
def test_a_stop_ends_all_of_it_by_term(bench: ShellBench, command: str) -> None:
    call = bench.start(marked(bench, command)).wait_said("ready")
    assert len(bench.mark.alive()) >= 2, "the supervisor and at least one process"
    answer = call.stop()

    assert bench.mark.alive() == []
    assert (answer.interrupted, answer.stdout) == (True, "ready\n")
    assert call.receipt() == (Outcome.KILLED, "ended by TERM")


@pytest.mark.parametrize("command", DEAF.values(), ids=DEAF.keys())
def test_what_is_deaf_to_term_ends_by_kill_after_the_grace(bench: ShellBench, command: str) -> None:
    call = bench.start(marked(bench, command), bench.shell(grace_s=0.3)).wait_said("ready")
    answer = call.stop()

    assert bench.mark.alive() == []
    assert answer.interrupted
    assert call.receipt() == (Outcome.KILLED, "ended by KILL after 0.3 s")
    assert call.took_s >= 0.3


def test_the_grace_is_one_second(bench: ShellBench) -> None:
    call = bench.start(marked(bench, DEAF["the command itself"])).wait_said("ready")
    call.stop()

    assert call.receipt() == (Outcome.KILLED, "ended by KILL after 1.0 s")
    assert 1.0 <= call.took_s < 1.8, "a stop is bounded"


def test_a_command_may_clean_up_on_term(bench: ShellBench, tmp_path: Path) -> None:
    # "ready" comes from the child: between fork and exec it would still have its parent's trap, and miss TERM.
    command = "trap 'echo bye; touch clean; exit 0' TERM; sh -c 'echo ready; exec sleep MARK' & wait"
    call = bench.start(marked(bench, command)).wait_said("ready")
    answer = call.stop()

    assert answer.stdout == "ready\nbye\n"
    assert (tmp_path / "clean").exists()
    assert (answer.interrupted, answer.exit_code) == (True, -1)
    assert call.receipt() == (Outcome.KILLED, "ended by TERM")


def test_each_process_hears_term_once(bench: ShellBench) -> None:
    command = "setsid sh -c \"trap 'echo heard' TERM; echo ready; sleep MARK & while ! wait; do :; done\" & sleep MARK"
    call = bench.start(marked(bench, command), bench.shell(grace_s=0.3)).wait_said("ready")

    assert call.stop().stdout == "ready\nheard\n"


def test_a_stop_ends_a_tree_thirty_deep(bench: ShellBench, tmp_path: Path) -> None:
    (tmp_path / "deeper").write_text(
        f'[ "$1" = 0 ] && {{ echo ready; exec sleep {bench.mark}; }}\nsh deeper $(($1 - 1)) & sleep {bench.mark}\n'
    )
    call = bench.start("sh deeper 30").wait_said("ready")
    assert len(bench.mark.alive()) > 30
    call.stop()

    assert call.receipt() == (Outcome.KILLED, "ended by TERM")


def test_a_stop_ends_a_loop_that_forks_without_end(bench: ShellBench) -> None:
    command = "echo ready; while :; do sleep MARK & sleep 0.01; done"
    call = bench.start(marked(bench, command)).wait_said("ready")
    call.stop()

    assert call.receipt() == (Outcome.KILLED, "ended by TERM")


def test_kill_catches_processes_that_go_on_forking_into_new_sessions(bench: ShellBench, tmp_path: Path) -> None:
    (tmp_path / "fork").write_text(f"while :; do setsid sleep {bench.mark} & sleep 0.01; done\n")
    command = "trap '' TERM; for each in 1 2 3 4 5 6; do setsid sh fork & done; echo ready; wait"
    call = bench.start(command, bench.shell(grace_s=0.2)).wait_said("ready")
    call.stop()

    assert call.receipt() == (Outcome.KILLED, "ended by KILL after 0.2 s")


def test_a_process_that_hops_from_session_to_session_is_caught(bench: ShellBench, tmp_path: Path) -> None:
    (tmp_path / "hop").write_text("setsid sh hop &\n")
    call = bench.start(marked(bench, "sh hop; echo ready; sleep MARK")).wait_said("ready")
    call.stop()

    assert call.run.outcome is Outcome.KILLED


# -- the normal end, and the limits ----------------------------------------------------------


@pytest.mark.parametrize(
    "leftover",
    [
        "sleep MARK &", "nohup sleep MARK &", "(setsid sleep MARK &)", "sh -c \"trap '' TERM; sleep MARK\" &",
        "(nohup setsid sh -c '(setsid sleep MARK &)' &)",
    ],
)  # fmt: skip
def test_what_a_command_leaves_behind_at_its_normal_end_is_ended_at_once(bench: ShellBench, leftover: str) -> None:
    answer = bench.run(marked(bench, f"{leftover}\necho done"))

    assert (answer.stdout, answer.exit_code, answer.success) == ("done\n", 0, True)
    assert answer.execution_time < 1.0, "neither its grace nor its hold on the pipes delays the result"


def test_a_hopping_process_is_caught_at_the_normal_end_too(bench: ShellBench, tmp_path: Path) -> None:
    (tmp_path / "hop").write_text("setsid sh hop &\n")

    assert bench.run("sh hop; echo done").success


@pytest.mark.parametrize("how", ["time", "output", "exec"])
def test_a_limit_ends_all_of_it_too(bench: ShellBench, how: str) -> None:
    command = "(setsid sleep MARK &); setsid sh -c \"trap '' TERM; sleep MARK\" & "
    command += {"time": "sleep MARK", "output": "yes", "exec": "exec yes"}[how]
    shell = bench.shell(grace_s=0.2, output_cap=100_000)
    call = bench.start(marked(bench, command), shell, timeout_ms=300 if how == "time" else 60_000)

    assert call.answer().exit_code == -1
    assert call.run.limit_hit is not None
    assert bench.mark.alive() == []


def test_a_pipe_that_somebody_outside_holds_open_does_not_delay_the_result(bench: ShellBench, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    call = bench.start("echo $$; read line < gate; echo more").wait_said("\n")
    pid = int(call.said())
    outside = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        (tmp_path / "gate").write_text("go\n")
        answer = call.answer()
    finally:
        os.close(outside)

    assert answer.stdout == f"{pid}\nmore\n"


# -- the supervisor itself -------------------------------------------------------------------


def test_killing_everything_by_name_or_group_does_not_reach_the_supervisor(bench: ShellBench) -> None:
    command = "for each in HUP INT QUIT TERM USR1 USR2; do kill -$each $PPID; done; setsid sleep MARK & echo here"

    assert bench.run(marked(bench, command)).stdout == "here\n"


def test_a_command_that_kills_its_supervisor_gains_nothing(bench: ShellBench) -> None:
    answer = bench.run(marked(bench, "(setsid sleep MARK &); echo before; kill -9 $PPID; sleep MARK"))

    assert answer.stdout == "before\n"
    assert answer.stderr == "the command's supervisor was killed, so what the command had started was ended"
    assert (answer.exit_code, answer.success) == (-1, False)


def test_a_command_that_suspends_its_supervisor_is_stopped_all_the_same(bench: ShellBench) -> None:
    call = bench.start(marked(bench, "kill -STOP $PPID; echo ready; sleep MARK")).wait_said("ready")
    call.stop()

    assert call.receipt() == (Outcome.KILLED, "ended by TERM")


def test_a_command_that_suspends_its_supervisor_again_and_again_is_stopped_all_the_same(bench: ShellBench) -> None:
    command = "trap '' TERM; echo ready; while :; do kill -STOP $PPID; done"
    call = bench.start(command, bench.shell(grace_s=0.2)).wait_said("ready")
    call.stop()

    assert call.run.outcome is Outcome.KILLED
    assert call.took_s < 1.5


def test_a_process_that_cannot_be_killed_is_called_abandoned_in_time(
    bench: ShellBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, say. Here the supervisor is kept from its work, and the sweep is made to report a failure."""
    monkeypatch.setattr(supervised, "kill_marked", lambda *arguments: kill_marked(*arguments) and False)
    call = bench.start("trap '' TERM; echo ready; while :; do kill -STOP $PPID; done").wait_said("ready")
    answer = call.stop()

    assert call.receipt() == (Outcome.ABANDONED, "a process could not be killed")
    assert call.took_s < 4  # it would never end, and is given up 1.5 s after the stop
    assert answer.interrupted


def test_a_leftover_that_cannot_be_killed_does_not_hide_how_the_command_ended(
    bench: ShellBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = tmp_path / "stuck.py"
    stuck.write_text("import os, select, sys\nos.write(int(sys.argv[1]), b'over 768\\n')\nselect.poll().poll()\n")
    monkeypatch.setattr(supervisor, "__file__", str(stuck))
    monkeypatch.setattr(supervised, "_LEFTOVER_BOUND_S", 0.1)
    monkeypatch.setattr(supervised, "kill_marked", lambda *_: False)
    answer = bench.run("exit 3")

    assert (answer.exit_code, answer.success) == (3, False)
    assert answer.stderr == "a process that the command left behind could not be ended"


def test_the_sweep_ends_what_carries_the_mark_and_nothing_else() -> None:
    mark, other = Mark(), Mark()
    marked_one, unmarked = (subprocess.Popen(["sleep", "600"], env=each.environment()) for each in (mark, other))
    try:
        assert kill_marked([f"TEST_MARK={mark}"], PATIENCE_S)
        assert marked_one.wait(PATIENCE_S) == -9
        assert other.alive() == [unmarked.pid]
    finally:
        unmarked.kill()
        unmarked.wait()


def test_the_supervisor_is_not_found_by_the_text_of_the_command(bench: ShellBench) -> None:
    """Else a command that ends its own helpers by name would end its supervisor too."""
    call = bench.start(marked(bench, "sh -c 'echo ready; sleep MARK' & wait")).wait_said("ready")
    (supervisor,) = (pid for pid in children() if pid in bench.mark.alive())
    line = Path(f"/proc/{supervisor}/cmdline").read_bytes()
    call.stop()

    assert b"supervisor.py" in line
    assert bench.mark.text.encode() not in line


# -- the server dies -------------------------------------------------------------------------

#: So long a grace that only KILL at once, for the server's death, lets these tests pass.
OWNER = """
import sys
from pathlib import Path
from core.cancellation import Level, Scope
from core.tool.shell import Shell
from core.tool.tool import ToolRun

def emit(stream, text):
    if stream == "stdout":
        sys.stdout.write(text)
        sys.stdout.flush()

run = ToolRun(Scope.root().open(Level.CALL, "shell"), None, "shell", emit)
Shell(Path("."), {"PATH": sys.argv[1], "TEST_MARK": sys.argv[2]}, grace_s=3600).run({"command": sys.argv[3]}, run)
"""


@pytest.mark.parametrize(
    "command", [*DESERTERS.values(), *DEAF.values()], ids=[*DESERTERS, *(f"deaf: {n}" for n in DEAF)]
)
def test_kill_9_of_the_process_that_owns_the_call_leaves_nothing(tmp_path: Path, command: str) -> None:
    mark = Mark()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, os.environ["PATH"], mark.text, command.replace("MARK", mark.text)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "PythonServer" / "src")}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"ready\n"
        assert len(mark.alive()) >= 3
    finally:
        owner.kill()
        owner.wait(PATIENCE_S)
        owner.stdout.close()

    mark.wait_none_alive()


# -- many stops at random moments ------------------------------------------------------------


def test_a_stop_at_any_moment_of_a_call_leaves_nothing(bench: ShellBench) -> None:
    """From before the start to after the end; the moments are spread, not forced."""
    command = marked(bench, "(setsid sleep MARK &); sleep 0.01")
    for step in range(40):
        call = bench.start(command)
        timer = threading.Timer(step / 1000, call.request_stop)
        timer.start()
        began = time.monotonic()
        call.wait_end()
        assert time.monotonic() - began < 1.0
        timer.join(PATIENCE_S)
        assert bench.mark.alive() == [], f"after a stop at {step} ms"


def test_the_shell_call_kit_tells_when_a_call_ends_early(bench: ShellBench) -> None:
    with pytest.raises(AssertionError, match="it ended without"):
        ShellCall(bench.shell(), "echo something else").start().wait_said("ready")
