"""The settings of the shell, as a user of the API meets them; and wrong ones, which keep the server from starting."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.launched import Launch
from tests.support.model_server import ModelServer, script
from tests.support.plans import start_plan
from tests.support.servers import ServerProcess

NO_MODEL = "http://127.0.0.1:9"
CAP = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything of the server with settings is."""
    return tmp_path_factory.mktemp("shell-settings")


@pytest.fixture(scope="module")
def set_server(models: ModelServer, folder: Path) -> Iterator[ServerProcess]:
    """A server whose shell has every setting."""
    settings = {
        "TOOLS_ALLOWED": "shell", "SHELL_WORK_DIR": str(folder / "not" / "there yet"), "TOOL_TIMEOUT_MS": "700",
        "SHELL_ENVIRONMENT": " PATH, COLOUR ,NOT_SET_ANYWHERE", "TOOL_OUTPUT_BYTES": str(CAP),
        "COLOUR": "blue", "SHAPE": "round", "LLM_API_KEY": "a-key-that-nobody-may-see",
    }  # fmt: skip
    (folder / "data").mkdir()
    with ServerProcess(folder / "data", models.url, **settings) as process:
        yield process


@pytest.fixture
def user(set_server: ServerProcess, key: str) -> Api:
    """A user of that server."""
    return set_server.api(key)


def _run(user: Api, command: str, **arguments: Any) -> tuple[Run, dict[str, Any]]:
    """A whole call as a goal of its own; its run, and its result."""
    tool = {"name": "shell", "arguments": {"command": command, **arguments}}
    run = start_plan(user, {"id": "tool", "tool": tool})
    run.wait_parked()
    (result,) = of_type(run, "tool_result")
    return run, json.loads(result["content"])


# -- where commands run, and what they see ---------------------------------------------------


def test_commands_run_in_the_working_folder_that_was_set_and_folders_are_relative_to_it(
    user: Api, models: ModelServer, folder: Path, key: str
) -> None:
    work = folder / "not" / "there yet"
    run, answer = _run(user, "pwd; mkdir -p below")
    assert answer["stdout"] == f"{work}\n"
    assert _run(user, "pwd", cwd="below")[1]["stdout"] == f"{work}/below\n"
    assert not (folder / "data" / "work").exists()
    five_checks(run, models, key)


def test_without_a_setting_commands_run_in_a_folder_of_data_dir(
    models: ModelServer, shell_server: ServerProcess, key: str
) -> None:
    run, answer = _run(shell_server.api(key), "pwd")
    assert answer["stdout"] == f"{shell_server.data_dir.resolve() / 'work'}\n"
    five_checks(run, models, key)


def test_a_command_sees_the_variables_that_are_named_and_no_other(user: Api, models: ModelServer, key: str) -> None:
    run, answer = _run(user, "env; tr '\\0' '\\n' < /proc/$PPID/environ")
    seen = dict(line.split("=", 1) for line in answer["stdout"].splitlines() if "=" in line)
    # The shell's own, and how the command is found and passed on.
    assert seen.keys() - {"PWD", "OLDPWD", "_", "SHLVL"} == {"PATH", "COLOUR", "SHELL_CALL_ID", "SUPERVISOR_COMMAND"}
    assert seen["COLOUR"] == "blue"
    assert "a-key-that-nobody-may-see" not in answer["stdout"]
    five_checks(run, models, key)


def test_without_a_setting_a_command_sees_the_usual_variables_and_nothing_of_the_servers_own(
    models: ModelServer, shell_server: ServerProcess, key: str
) -> None:
    run, answer = _run(shell_server.api(key), "env")
    names = {line.split("=")[0] for line in answer["stdout"].splitlines() if "=" in line}
    usual = {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TERM", "TMPDIR"}
    assert names - usual - {"PWD", "OLDPWD", "_", "SHLVL"} == {"SHELL_CALL_ID"}
    assert "PATH" in names
    five_checks(run, models, key)


# -- limits ----------------------------------------------------------------------------------


def test_a_command_that_takes_longer_than_the_limit_is_ended_and_the_model_goes_on(
    user: Api, models: ModelServer, key: str
) -> None:
    arguments = {"command": "echo begun; setsid sleep 600 & sleep 600"}
    run = user.start(script("toolcall", name="shell", arguments=arguments, tokens=2, key=key))
    run.wait_parked()
    (result,) = of_type(run, "tool_result")
    answer = json.loads(result["content"])
    assert (answer["stdout"], answer["stderr"]) == ("begun\n", "the command was ended after 0.7 s")
    assert (answer["exit_code"], answer["success"], result["is_error"]) == (-1, False, True)
    assert "interrupted" not in answer
    assert 0.7 <= answer["execution_time"] < 10
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert of_type(run, "stop_requested", "turn_cancelled") == []
    five_checks(run, models, key)


def test_a_call_may_ask_for_another_time_limit(user: Api, models: ModelServer, key: str) -> None:
    run, answer = _run(user, "sleep 1.2; echo done", timeout_ms=30_000)
    assert (answer["stdout"], answer["exit_code"]) == ("done\n", 0)
    assert _run(user, "sleep 600", timeout_ms=50)[1]["stderr"] == "the command was ended after 0.05 s"
    five_checks(run, models, key)


def test_a_command_that_writes_more_than_the_limit_is_ended_and_what_fits_is_kept(
    user: Api, models: ModelServer, key: str
) -> None:
    run, answer = _run(user, "yes | tr -d '\\n'; echo never")
    assert answer["stdout"] == "y" * CAP
    assert answer["stderr"] == f"the output was longer than {CAP} bytes; the command was ended"
    assert (answer["exit_code"], answer["success"]) == (-1, False)
    assert "interrupted" not in answer
    assert sum(len(event["text"]) for event in of_type(run, "tool_output")) == CAP
    assert _run(user, f"head -c {CAP} /dev/zero | tr '\\0' x")[1]["exit_code"] == 0
    five_checks(run, models, key)


# -- wrong values ----------------------------------------------------------------------------


def _refusal(launch: Launch, **variables: str) -> str:
    """The one line of a start that was refused."""
    server = launch(LLM_BASE_URL=NO_MODEL, **variables)
    assert server.wait_end() == 2, server.errors
    assert (server.lines, len(server.errors)) == ([], 1), server.errors
    assert server.errors[0].startswith("pythonserver: ")
    assert "Traceback" not in server.errors[0]
    return server.errors[0]


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", "3600001", "1e3", "120s"])
def test_a_wrong_time_limit_stops_the_start_with_the_values_that_are_right(launch: Launch, value: str) -> None:
    line = _refusal(launch, TOOLS_ALLOWED="shell", TOOL_TIMEOUT_MS=value)
    assert f"TOOL_TIMEOUT_MS='{value}' is wrong" in line
    assert "from 1 to 3600000" in line


@pytest.mark.parametrize("value", ["1023", "0", "-1", "1MiB", "67108865"])
def test_a_wrong_limit_of_the_output_stops_the_start_with_the_values_that_are_right(launch: Launch, value: str) -> None:
    line = _refusal(launch, TOOLS_ALLOWED="shell", TOOL_OUTPUT_BYTES=value)
    assert f"TOOL_OUTPUT_BYTES='{value}' is wrong" in line
    assert "from 1024 to 67108864" in line


def test_a_wrong_limit_stops_the_start_also_while_no_tool_is_allowed(launch: Launch) -> None:
    assert "TOOL_TIMEOUT_MS='0' is wrong" in _refusal(launch, TOOL_TIMEOUT_MS="0")


def test_a_tool_that_there_is_not_stops_the_start_with_those_that_there_are(launch: Launch) -> None:
    line = _refusal(launch, TOOLS_ALLOWED="shell, rocket")
    assert "TOOLS_ALLOWED names 'rocket'" in line
    assert "shell" in line.partition("rocket")[2]


@pytest.mark.parametrize("place", ["a file", "a file/below", "/proc/nowhere"])
def test_a_working_folder_that_cannot_be_stops_the_start_with_its_name(
    launch: Launch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "a file").touch()
    line = _refusal(launch, TOOLS_ALLOWED="shell", SHELL_WORK_DIR=str(tmp_path / place))
    assert "SHELL_WORK_DIR" in line
    assert str(tmp_path / place) in line
