"""The shell tool: results, limits, and what a command sees."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from core import gates
from core.cancellation import CauseWord
from core.tool import supervisor
from core.tool.shell import Shell
from core.tool.tool import Stops, ToolFailed
from tests.support.servers import Gate
from tests.support.shell_kit import ShellBench, ShellCall


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


@pytest.mark.parametrize("cwd", [None, "", "."])
def test_a_command_that_removes_the_working_folder_does_not_keep_the_next_from_running(
    tmp_path: Path, cwd: str | None
) -> None:
    bench = ShellBench(tmp_path / "data" / "work")
    (tmp_path / "data" / "work").mkdir(parents=True)
    assert bench.run(f"touch mine; rm -rf {tmp_path}/data").exit_code == 0
    assert not (tmp_path / "data").exists()

    answer = bench.run("pwd; ls", **({} if cwd is None else {"cwd": cwd}))

    assert (answer.stdout, answer.exit_code) == (f"{tmp_path}/data/work\n", 0)


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
    # Those above 31 are the C library's own, or nobody's.
    assert [int(word, 16) & 0x7FFFFFFF for word in answer.stdout.split()[3::2]] == [0, 0]


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
