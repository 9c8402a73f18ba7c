"""The shell tool: results, limits, what a command sees, and what a call leaves behind."""

import json
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from core import gates
from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope
from core.tool import supervisor
from core.tool.shell import Shell
from core.tool.tool import Stops, ToolFailed, ToolRun
from tests.support.servers import Gate
from tests.support.shell_kit import STOP, ShellBench, ShellCall, children, descriptors, in_threads


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ShellBench]:
    bench = ShellBench(tmp_path)
    yield bench
    gates.installed.clear()
    assert bench.mark.alive() == []


# -- results ---------------------------------------------------------------------------------


def test_a_result_has_both_outputs_the_exit_code_and_the_time(bench: ShellBench) -> None:
    answer = bench.run("echo out; echo err >&2")

    assert answer.fields == {
        "stdout": "out\n", "stderr": "err\n", "exit_code": 0, "success": True, "execution_time": answer.execution_time,
    }  # fmt: skip
    assert isinstance(answer.execution_time, float)
    assert 0 < answer.execution_time < 10
    assert not answer.result.is_error


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("exit 3", 3), ("nosuchcommand", 127), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("kill -PIPE $$", -13),
        ("kill -HUP $$", -1), ("kill -INT $$", -2), ("kill -USR1 $$", -10), ("kill -CHLD $$", 0),
    ],
)  # fmt: skip
def test_an_exit_code_is_the_commands_own_and_negative_for_a_signal(
    bench: ShellBench, command: str, exit_code: int
) -> None:
    answer = bench.run(command)

    assert (answer.exit_code, answer.success, answer.result.is_error) == (exit_code, exit_code == 0, exit_code != 0)


def test_the_result_keeps_characters_as_they_are(bench: ShellBench) -> None:
    answer = bench.run("printf 'grün 漢字 🙂'")

    assert answer.stdout == "grün 漢字 🙂"
    assert "漢字 🙂" in answer.result.content


def test_a_finished_call_is_settled_by_nobody_and_its_scope_stays_open(bench: ShellBench) -> None:
    call = bench.start("true")
    call.answer()

    assert call.run.outcome is None
    assert not call.scope.is_stopped


# -- where and how it runs -------------------------------------------------------------------


def test_a_command_runs_in_the_working_folder_or_in_a_folder_relative_to_it(bench: ShellBench, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()

    assert bench.run("pwd").stdout == f"{tmp_path}\n"
    assert bench.run("pwd", cwd="below").stdout == f"{tmp_path}/below\n"
    assert bench.run("pwd", cwd="/").stdout == "/\n"


@pytest.mark.parametrize("cwd", ["nowhere", "/nowhere/at/all", "file", "a\0b", "x" * 5000])
def test_a_folder_that_is_not_there_is_named_and_nothing_runs(bench: ShellBench, tmp_path: Path, cwd: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ToolFailed, match="there is no folder"):
        bench.run("touch ran", cwd=cwd)
    assert not (tmp_path / "ran").exists()


def test_a_command_sees_allowed_variables_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_API_KEY", "very-secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("LANG", "C.UTF-8")

    answer = ShellCall(Shell(tmp_path), "env; tr '\\0' '\\n' < /proc/$PPID/environ").start().answer()

    names = {line.split("=")[0] for line in answer.stdout.splitlines() if "=" in line}
    assert "very-secret" not in answer.stdout
    assert "LANG=C.UTF-8" in answer.stdout
    allowed = {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TERM", "TMPDIR"}
    assert names - allowed == {"SHELL_CALL_ID", "SUPERVISOR_COMMAND", "PWD"} | (names & {"OLDPWD", "_", "SHLVL"})


def test_a_command_does_not_see_how_it_was_passed_on(bench: ShellBench) -> None:
    assert "SUPERVISOR_COMMAND" not in bench.run("env").stdout


def test_there_is_no_input(bench: ShellBench) -> None:
    assert bench.run("cat; read line || echo none; readlink /proc/self/fd/0").stdout == "none\n/dev/null\n"


def test_a_command_gets_no_descriptor_of_the_server(bench: ShellBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        answer = bench.run("for each in 0 1 2 3 4 5 6 7 8 9; do readlink /proc/$$/fd/$each; done; ls /proc/self/fd")

    assert answer.stdout.split()[0] == "/dev/null"
    assert [line.split(":")[0] for line in answer.stdout.split()[1:3]] == ["pipe", "pipe"]
    assert answer.stdout.split()[3:] == ["0", "1", "2", "3"]  # 3 is the folder that ls reads


def test_a_command_has_a_session_of_its_own_and_the_usual_signals(bench: ShellBench) -> None:
    answer = bench.run("cut -d' ' -f6 /proc/$$/stat; echo $$; grep -E 'Sig(Blk|Ign)' /proc/self/status")

    session, pid = answer.stdout.split()[:2]
    assert session == pid
    assert [int(word, 16) for word in answer.stdout.split()[3::2]] == [0, 0]


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800"])
def test_a_command_that_cannot_be_passed_on_is_refused_in_words(bench: ShellBench, command: str) -> None:
    with pytest.raises(ToolFailed, match="cannot be passed on"):
        bench.run(command)


def test_a_command_longer_than_the_system_allows_is_refused_in_words(bench: ShellBench) -> None:
    with pytest.raises(ToolFailed, match=r"^the command could not be started: Argument list too long$"):
        bench.run(f": {'x' * 200_000}")


@pytest.mark.parametrize(
    ("line", "broken", "words"),
    [
        ('posix.execve(b"/bin/sh"', 'posix.execve(b"/nowhere/sh"', "No such file or directory"),
        ("pid = posix.fork()", "raise OSError(11, '')", "Resource temporarily unavailable"),
    ],
)
def test_a_shell_that_cannot_be_started_is_said_in_words(
    bench: ShellBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, broken: str, words: str
) -> None:
    text = Path(supervisor.__file__).read_text()
    assert text.count(line) == 1
    (tmp_path / "supervisor.py").write_text(text.replace(line, broken))
    monkeypatch.setattr(supervisor, "__file__", str(tmp_path / "supervisor.py"))

    with pytest.raises(ToolFailed, match=f"^/bin/sh could not be started: {words}$"):
        bench.run("true")


def test_it_says_what_it_takes_and_how_it_stops(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    checker = Draft202012Validator(shell.parameters)

    Draft202012Validator.check_schema(shell.parameters)
    assert (shell.name, shell.stops) == ("shell", Stops.ABORTS)
    assert checker.is_valid({"command": "true", "cwd": "x", "timeout_ms": 600_000})
    for wrong in ({}, {"command": 1}, {"command": "a", "timeout_ms": 0}, {"command": "a", "timeout_ms": 600_001},
                  {"command": "a", "shell": "b"}):  # fmt: skip
        assert not checker.is_valid(wrong)


# -- output ----------------------------------------------------------------------------------


def test_output_is_handed_on_while_the_command_runs(bench: ShellBench) -> None:
    call = bench.start(f"echo second >&2; echo first; sleep {bench.mark}").wait_said("first")

    assert "first\n" in call.said()
    call.stop()
    assert (call.said(), call.said("stderr")) == ("first\n", "second\n")


def test_a_character_that_is_cut_between_two_reads_stays_whole(bench: ShellBench) -> None:
    call = bench.start(r"printf 'a\360\237'; sleep 0.2; printf '\231'; sleep 0.2; printf '\202b'")

    assert call.answer().stdout == "a🙂b"
    assert "".join(text for _, text in call.pieces) == "a🙂b"
    assert len(call.pieces) > 1, "the command wrote in three goes, so that it could be cut"


def test_bytes_that_are_no_text_are_replaced(bench: ShellBench) -> None:
    assert bench.run(r"printf 'a\377b\360\237'").stdout == "a\ufffdb\ufffd"


def test_output_that_was_written_just_before_the_end_is_all_there(bench: ShellBench) -> None:
    call = bench.start("head -c 60000 /dev/zero | tr '\\0' x; head -c 60000 /dev/zero | tr '\\0' y >&2")
    answer = call.answer()

    assert (len(answer.stdout), len(answer.stderr)) == (60_000, 60_000)


def test_pieces_are_at_most_64_kib(bench: ShellBench) -> None:
    call = bench.start("head -c 300000 /dev/zero | tr '\\0' '\\377'")
    call.answer()

    assert max(len(text.encode()) for _, text in call.pieces) <= 64 * 1024
    assert call.said() == "\ufffd" * 300_000


def test_the_model_gets_the_beginning_and_the_end_of_a_long_output(bench: ShellBench) -> None:
    call = bench.start("echo BEGIN; head -c 300000 /dev/zero | tr '\\0' x; echo; echo END")
    answer = call.answer()

    assert answer.stdout.startswith("BEGIN\nxxx")
    assert answer.stdout.endswith("xxx\nEND\n")
    assert len(answer.stdout.encode()) <= 64 * 1024
    head, missing, tail = answer.stdout.partition("\n[... ")
    left_out, _, tail = tail.partition(" bytes left out ...]\n")
    assert missing
    assert len(head) + int(left_out) + len(tail) == len(call.said()) == 300_011


def test_too_much_output_ends_the_command(bench: ShellBench) -> None:
    call = bench.start("yes; echo never", bench.shell(output_cap=100_000))
    answer = call.answer()

    assert len(call.said()) == 100_000
    assert answer.stderr == "the output was longer than 100000 bytes; the command was ended"
    assert (answer.exit_code, answer.success, answer.result.is_error) == (-1, False, True)
    assert "interrupted" not in answer.fields
    assert call.run.limit_hit is CauseWord.OUTPUT_LIMIT


def test_the_cap_counts_both_outputs_together(bench: ShellBench) -> None:
    command = "head -c 600 /dev/zero; head -c 600 /dev/zero >&2"

    assert bench.run(command, bench.shell(output_cap=1200)).exit_code == 0
    assert bench.run(command, bench.shell(output_cap=1199)).exit_code == -1


def test_too_much_output_is_said_even_if_the_command_had_ended_by_itself(bench: ShellBench) -> None:
    answer = bench.run("head -c 30000 /dev/zero | tr '\\0' x", bench.shell(output_cap=10_000))

    assert "longer than 10000 bytes" in answer.stderr
    assert answer.exit_code == -1


# -- the time limit --------------------------------------------------------------------------


def test_a_command_that_takes_too_long_is_ended(bench: ShellBench) -> None:
    call = bench.start(f"echo out; echo err >&2; sleep {bench.mark}", timeout_ms=300)
    answer = call.answer()

    assert (answer.stdout, answer.stderr) == ("out\n", "err\nthe command was ended after 0.3 s")
    assert (answer.exit_code, answer.success, answer.result.is_error) == (-1, False, True)
    assert "interrupted" not in answer.fields
    assert 0.3 <= answer.execution_time < 10
    assert call.run.limit_hit is CauseWord.DEADLINE


def test_a_time_limit_that_strikes_before_the_start_is_a_time_limit_too(bench: ShellBench, tmp_path: Path) -> None:
    struck = threading.Event()
    gate = gates.installed["shell.before_start"] = Gate("shell.before_start")
    call = ShellCall(bench.shell(), "touch ran", timeout_ms=1)
    call.scope.add_abort(struck.set)
    call.start()
    assert struck.wait(10)
    gate.open()
    answer = call.answer()

    assert answer.stderr == "the command was ended after 0.001 s"
    assert not (tmp_path / "ran").exists()


def test_the_time_limit_is_called_off_when_the_command_has_ended(bench: ShellBench) -> None:
    call = bench.start("true", timeout_ms=400)
    call.answer()

    later = threading.Event()
    late = bench.start(f"sleep {bench.mark}", timeout_ms=600)
    late.scope.add_abort(later.set)
    assert later.wait(10), "the later alarm has rung, so the earlier one would have"
    assert not call.scope.is_stopped
    late.wait_end()


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
    before = descriptors(), children()
    run = ToolRun(Scope.root(), None, "shell", lambda *_: other.checkpoint())

    with pytest.raises(Cancelled) as raised:
        bench.shell().run({"command": f"echo x; setsid sleep {bench.mark} & sleep {bench.mark}"}, run)
    assert raised.value.scope is other
    assert bench.mark.alive() == []
    assert (descriptors(), children()) == before


# -- what a call leaves behind ---------------------------------------------------------------


def test_fifty_calls_at_once_each_get_their_own_result_and_leave_nothing(bench: ShellBench) -> None:
    bench.run("true", timeout_ms=600_000)
    before = descriptors(), children(), threading.active_count()
    calls = [ShellCall(bench.shell(), f"echo {number}; (sleep {bench.mark} &); exit {number}") for number in range(50)]
    for call in calls:
        call.start()
    answers = [call.answer() for call in calls]

    assert [(answer.stdout, answer.exit_code) for answer in answers] == [(f"{n}\n", n) for n in range(50)]
    assert bench.mark.alive() == []
    assert (descriptors(), children(), threading.active_count()) == before


def test_fifty_calls_that_are_stopped_at_once_leave_nothing(bench: ShellBench) -> None:
    bench.run("true", timeout_ms=600_000)
    before = descriptors(), children(), threading.active_count()
    calls = [bench.start(f"sleep {bench.mark} & echo ready; sleep {bench.mark}") for _ in range(50)]
    for call in calls:
        call.wait_said("ready")
    for call in calls:
        call.request_stop()

    assert all(call.answer().interrupted for call in calls)
    assert bench.mark.alive() == []
    assert (descriptors(), children(), threading.active_count()) == before


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


def test_without_a_free_descriptor_it_fails_in_words_and_leaves_none_open(bench: ShellBench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    for spare in range(14):
        # The next call finds this many free descriptors: it fails at another line each time, and at last not at all.
        call = ShellCall(bench.shell(), "echo ok")
        resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free_limit(spare), hard))
        try:
            call.start().wait_end()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert call.error is None or isinstance(call.error, ToolFailed), call.error
        assert call.error is not None or call.answer().stdout == "ok\n"
        assert descriptors() == before
    assert call.error is None


def _lowest_free_limit(spare: int) -> int:
    """The file limit that leaves ``spare`` descriptors."""
    taken = {int(number) for number in descriptors()}
    free = [number for number in range(max(taken) + 20) if number not in taken]
    return free[spare]
