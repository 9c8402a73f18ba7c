"""The shell tool: a stop at each moment of a call, and what calls leave behind in the server."""

import json
import os
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import gates
from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope
from core.tool.tool import ToolFailed, ToolRun
from tests.support.servers import Gate
from tests.support.shell_kit import STOP, ShellBench, ShellCall, children, descriptors, in_threads, leaves_nothing


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ShellBench]:
    bench = ShellBench(tmp_path)
    yield bench
    gates.installed.clear()
    assert bench.mark.alive() == []


# -- a stop ----------------------------------------------------------------------------------


def test_a_stopped_call_returns_what_there_is_and_says_that_it_was_interrupted(bench: ShellBench) -> None:
    call = bench.start(f"echo half >&2; printf done; sleep {bench.mark}").wait_said("done")
    answer = call.stop()

    assert answer.fields == {
        "stdout": "done", "stderr": "half\nthe command was interrupted (user)", "exit_code": -1, "success": False,
        "execution_time": answer.execution_time, "interrupted": True,
    }  # fmt: skip
    assert answer.result.is_error
    assert call.receipt() == (Outcome.KILLED, "ended by TERM")
    assert bench.mark.alive() == []


def test_a_deadline_of_the_turn_reads_as_an_interruption_not_as_the_tools_time_limit(bench: ShellBench) -> None:
    call = bench.start(f"echo ready; sleep {bench.mark}").wait_said("ready")
    answer = call.stop(Cause(CauseWord.DEADLINE))

    assert answer.stderr == "the command was interrupted (deadline)"
    assert answer.interrupted


def test_a_call_that_is_stopped_already_starts_nothing(bench: ShellBench, tmp_path: Path) -> None:
    call = ShellCall(bench.shell(), "touch ran")
    call.request_stop()
    before = children()
    call.start()

    with pytest.raises(Cancelled):
        call.answer()
    assert call.receipt() == (Outcome.NOT_STARTED, "never began")
    assert children() == before
    assert not (tmp_path / "ran").exists()


def test_a_stop_just_before_the_start_starts_nothing(bench: ShellBench, tmp_path: Path) -> None:
    gate = gates.installed["shell.before_start"] = Gate("shell.before_start")
    call = bench.start("touch ran")
    gate.wait_reached()
    call.request_stop()
    gate.open()

    with pytest.raises(Cancelled):
        call.answer()
    assert call.receipt() == (Outcome.NOT_STARTED, "never began")
    assert not (tmp_path / "ran").exists()


def test_a_stop_of_a_command_that_has_just_ended_says_so(bench: ShellBench) -> None:
    run: ToolRun

    def stop_late(stream: str, text: str) -> None:
        # Both pipes end only when the command has ended; this is its last output, handed on after that.
        if "last" in text:
            os.waitid(os.P_PIDFD, supervisor_pidfd, os.WEXITED | os.WNOWAIT)
            run.scope.cancel(STOP)

    supervisor_pidfd = -1
    before = children()
    scope = Scope.root().open(Level.CALL, "shell")

    def emit(stream: str, text: str) -> None:
        nonlocal supervisor_pidfd
        if supervisor_pidfd < 0:
            (pid,) = children() - before
            supervisor_pidfd = os.pidfd_open(pid)
        stop_late(stream, text)

    run = ToolRun(scope, None, "shell", emit)
    try:
        result = bench.shell().run({"command": "echo the last; exit 4"}, run)
    finally:
        os.close(supervisor_pidfd)

    assert json.loads(result.content)["exit_code"] == 4
    assert (run.outcome, run.item(0.0)["how"]) == (Outcome.ALREADY_DONE, "it had finished")


def test_ten_stops_at_once_are_one(bench: ShellBench) -> None:
    call = bench.start(f"echo ready; sleep {bench.mark}").wait_said("ready")
    in_threads(10, lambda _: call.request_stop())

    assert call.answer().interrupted


def test_a_stop_after_the_end_finds_nothing_to_do(bench: ShellBench) -> None:
    call = bench.start("true")
    call.answer()
    call.request_stop()

    assert call.run.outcome is None


def test_a_stop_that_comes_out_of_the_output_port_passes_and_leaves_nothing(bench: ShellBench) -> None:
    other = Scope.root()
    other.cancel(STOP)
    run = ToolRun(Scope.root(), None, "shell", lambda *_: other.checkpoint())

    with leaves_nothing(), pytest.raises(Cancelled) as raised:
        bench.shell().run({"command": f"echo x; setsid sleep {bench.mark} & sleep {bench.mark}"}, run)
    assert raised.value.scope is other
    assert bench.mark.alive() == []


# -- what a call leaves behind ---------------------------------------------------------------


def test_fifty_calls_at_once_each_get_their_own_result_and_leave_nothing(bench: ShellBench) -> None:
    bench.run("true", timeout_ms=600_000)
    threads = threading.active_count()
    calls = [ShellCall(bench.shell(), f"echo {number}; (sleep {bench.mark} &); exit {number}") for number in range(50)]
    with leaves_nothing():
        for call in calls:
            call.start()
        answers = [call.answer() for call in calls]

    assert [(answer.stdout, answer.exit_code) for answer in answers] == [(f"{n}\n", n) for n in range(50)]
    assert bench.mark.alive() == []
    assert threading.active_count() <= threads  # idle threads of earlier tests may have ended meanwhile


def test_fifty_calls_that_are_stopped_at_once_leave_nothing(bench: ShellBench) -> None:
    bench.run("true", timeout_ms=600_000)
    threads = threading.active_count()
    with leaves_nothing():
        calls = [bench.start(f"sleep {bench.mark} & echo ready; sleep {bench.mark}") for _ in range(50)]
        for call in calls:
            call.wait_said("ready")
        for call in calls:
            call.request_stop()
        assert all(call.answer().interrupted for call in calls)

    assert bench.mark.alive() == []
    assert threading.active_count() <= threads  # idle threads of earlier tests may have ended meanwhile


def test_it_works_with_descriptors_above_1024(bench: ShellBench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("the hard limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert opened[-1] > 1024
        call = bench.start(f"echo ready; sleep {bench.mark}").wait_said("ready")
        assert call.stop().interrupted
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="subprocess itself leaves pipes open there when it runs out")
def test_without_a_free_descriptor_it_fails_in_words_and_leaves_none_open(bench: ShellBench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(14):
        # The next call finds this many free descriptors: it fails at another line each time, and at last not at all.
        call = ShellCall(bench.shell(), "echo ok")
        with leaves_nothing():
            resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free_limit(spare), hard))
            try:
                call.start().wait_end()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert call.error is None or isinstance(call.error, ToolFailed), call.error
        assert call.error is not None or call.answer().stdout == "ok\n"
    assert call.error is None


def _lowest_free_limit(spare: int) -> int:
    """The file limit that leaves ``spare`` descriptors."""
    taken = descriptors()
    free = [number for number in range(max(taken) + 20) if number not in taken]
    return free[spare]
