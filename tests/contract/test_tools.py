"""The tool loop over HTTP: the shell, what goes wrong with a call, limits, and which tools an agent has."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.agent.tool_loop import MAX_ROUNDS
from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks, processes_of
from tests.support.going_back import of_type, system_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, start_plan
from tests.support.servers import ServerProcess


@pytest.fixture
def user(shell_server: ServerProcess, key: str) -> Api:
    """A user of the server with the shell."""
    return shell_server.api(key)


def _shell(key: str, *commands: str, **options: Any) -> str:
    """A line by which the model calls the shell, once for each command at the same time."""
    arguments = [json.dumps({"command": command}, separators=(",", ":")) for command in commands]
    return script("toolcall", name=["shell"] * len(commands), arguments=arguments, tokens=2, key=key, **options)


def _results(run: Run) -> list[dict[str, Any]]:
    return [message for message in run.transcript() if message["role"] == "tool"]


def _finish(run: Run, models: ModelServer, key: str) -> None:
    """The loop went on after whatever became of the tools: the model's answer is there."""
    assert run.wait_parked() == "awaiting_input"
    said = run.transcript()[-1]
    assert (said["role"], said["content"]) == ("assistant", "t1 t2 ")
    five_checks(run, models, key)


# -- running ---------------------------------------------------------------------------------


def test_a_tool_runs_and_the_model_reads_what_it_printed(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(_shell(key, "echo out; echo err >&2; exit 3", text=1))
    run.wait_parked()
    call, result = of_type(run, "tool_call", "tool_result")
    assert (call["name"], json.loads(call["arguments"])["command"]) == ("shell", "echo out; echo err >&2; exit 3")
    assert (call["call_id"], call["goal_id"], result["is_error"]) == (result["call_id"], "answer", True)
    output = {(event["stream"], event["text"]) for event in of_type(run, "tool_output")}
    assert output == {("stdout", "out\n"), ("stderr", "err\n")}
    answer = json.loads(result["content"])
    assert (answer["stdout"], answer["stderr"], answer["exit_code"], answer["success"]) == ("out\n", "err\n", 3, False)
    assert "interrupted" not in answer
    second = models.calls(key=key)[1].messages
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool"]
    assert second[-1]["content"] == result["content"]
    assert models.calls(key=key)[0].tools == ["shell"]
    _finish(run, models, key)


def test_several_tools_of_one_reply_run_at_the_same_time(
    user: Api, models: ModelServer, key: str, tmp_path: Path
) -> None:
    # Each waits for the other: one after the other they would never end.
    fifo = tmp_path / "fifo"
    run = user.start(_shell(key, f"mkfifo {fifo}; cat {fifo}", f"until [ -p {fifo} ]; do :; done; echo met > {fifo}"))
    run.wait_parked()
    assert json.loads(_results(run)[0]["content"])["stdout"] == "met\n"
    _finish(run, models, key)


def test_what_a_tool_leaves_in_the_background_ends_with_the_call(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(_shell(key, "sleep 600 & setsid sleep 600 & echo started"))
    run.wait_event("tool_result")
    assert processes_of(run.events(lambda event: event["type"] == "tool_result")) == []
    _finish(run, models, key)


def test_fifty_rounds_of_tools_are_the_most(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(_shell(key, "true", rounds=MAX_ROUNDS + 1, interval_ms=0))
    run.wait_parked()
    assert (len(of_type(run, "tool_call")), len(models.calls(key=key))) == (MAX_ROUNDS, MAX_ROUNDS)
    (end,) = of_type(run, "turn_failed")
    assert str(MAX_ROUNDS) in end["error"]
    marked = [message["role"] for message in run.transcript() if message.get("failed")]
    assert marked == ["assistant"]
    five_checks(run, models, key)


def test_many_rounds_in_a_row_are_one_answer(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(_shell(key, "echo x", rounds=5, text=1, interval_ms=0))
    run.wait_parked()
    roles = [message["role"] for message in run.transcript()]
    assert roles == ["user", *["assistant", "tool"] * 5, "assistant"]
    assert run.goals()["answer"]["result"] == "t1 t2 "
    _finish(run, models, key)


def test_a_model_that_says_nothing_after_its_tools_has_done_its_work(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(script("toolcall", name="shell", arguments='{"command":"true"}', tokens=0, key=key))
    assert run.wait_parked() == "awaiting_input"
    assert [message["role"] for message in run.transcript()] == ["user", "assistant", "tool"]
    assert [message for message in run.transcript() if message.get("failed")] == []
    answer = run.goals()["answer"]
    assert (answer["status"], answer["result"], answer["error"]) == ("COMPLETED", "", None)
    assert [usage["partial"] for usage in of_type(run, "usage")] == [False, False]
    five_checks(run, models, key)


def test_a_model_that_says_nothing_at_all_has_failed(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(script("nothing", key=key))
    run.wait_parked()
    assert "answered nothing" in of_type(run, "turn_failed")[0]["error"]
    five_checks(run, models, key)


# -- what goes wrong with a call ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("rocket", "{}", ["no tool 'rocket'", "shell"]),
        ("functions.shell/größe", "{}", ["no tool 'functions.shell/größe'", "shell"]),
        ("x" * 65, "{}", ["no tool 'xxx"]),
        ("shell", "{}", ["'command' is a required property"]),
        ("shell", '{"command":7}', ["command: 7 is not of type 'string'"]),
        ("shell", '{"command":"true","timeout_ms":0}', ["timeout_ms"]),
        ("shell", '{"command":"true","speed":1}', ["speed"]),
        ("shell", "[1]", ["not a JSON object"]),
        ("shell", '{"command":', ["not a JSON object"]),
        ("shell", "{}{}", ["not a JSON object"]),
        ("shell", '{"command":"true","cwd":"no-such-folder"}', ["no folder"]),
        ("shell", '{"command":"true\\u0000"}', []),
    ],
    ids=[
        "unknown", "odd-name", "long-name", "missing", "type", "range", "extra", "list", "half", "two", "no-folder", "nul",
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model_and_the_loop_goes_on(
    user: Api, models: ModelServer, key: str, name: str, arguments: str, words: list[str]
) -> None:
    run = user.start(script("toolcall", name=name, arguments=arguments, tokens=2, key=key))
    run.wait_parked()
    (result,) = of_type(run, "tool_result")
    assert result["is_error"] is True
    assert all(word in result["content"] for word in words), result["content"]
    assert "Traceback" not in result["content"]
    assert run.goals()["answer"]["status"] == "COMPLETED"
    _finish(run, models, key)


def test_one_call_that_cannot_be_made_does_not_keep_the_others_from_running(
    user: Api, models: ModelServer, key: str
) -> None:
    arguments = ['{"command":"echo\\u0020one"}', "no", '{"command":"echo\\u0020three"}']
    run = user.start(script("toolcall", name=["shell", "shell", "shell"], arguments=arguments, tokens=2, key=key))
    run.wait_parked()
    contents = [message["content"] for message in _results(run)]
    assert ("one" in contents[0], "JSON object" in contents[1], "three" in contents[2]) == (True, True, True)
    _finish(run, models, key)


def test_arguments_of_a_deep_nesting_are_an_error_and_not_a_crash(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(script("toolcall", name="shell", arguments="[" * 20_000, tokens=2, interval_ms=0, key=key))
    run.wait_parked()
    assert of_type(run, "tool_result")[0]["is_error"] is True
    _finish(run, models, key)


# -- goals that are a tool ---------------------------------------------------------------------


def test_a_goal_that_is_a_tool_runs_without_a_model_and_its_output_reaches_its_dependents(
    user: Api, models: ModelServer, key: str
) -> None:
    tool = {"name": "shell", "arguments": {"command": "echo the-output"}}
    run = start_plan(user, {"id": "tool", "tool": tool}, goal("answer", script("strict", key=key), "tool"))
    run.wait_parked()
    (request,) = models.calls(key=key)
    assert "Result of “tool”" in system_of(request)
    assert "the-output" in system_of(request)
    assert [event["goal_id"] for event in of_type(run, "tool_call", "tool_result")] == ["tool", "tool"]
    assert json.loads(run.goals()["tool"]["result"])["stdout"] == "the-output\n"
    five_checks(run, models, key)


def test_a_goal_whose_tool_fails_is_failed_and_its_dependents_never_begin(
    user: Api, models: ModelServer, key: str
) -> None:
    tool = {"name": "shell", "arguments": {"command": "echo why >&2; false"}}
    run = start_plan(user, {"id": "tool", "tool": tool}, goal("answer", script("strict", key=key), "tool"))
    run.wait_parked()
    goals = run.goals()
    assert (goals["tool"]["status"], goals["answer"]["status"]) == ("FAILED", "CANCELLED")
    assert "why" in goals["tool"]["error"]
    assert models.calls(key=key) == []
    five_checks(run, models, key)


def test_a_stop_of_a_goal_that_is_a_tool_ends_its_processes(user: Api, models: ModelServer, key: str) -> None:
    tool = {"name": "shell", "arguments": {"command": "echo begun; setsid sleep 600 & sleep 600"}}
    run = start_plan(user, {"id": "tool", "tool": tool}, goal("answer", script("strict", key=key), "tool"))
    run.wait_event("tool_output", text="begun\n")
    answer = run.cancel(wait_ms=30_000)
    assert answer["parked"] is True
    assert [(item["kind"], item["outcome"]) for item in answer["receipt"]] == [
        ("tool", "killed"), ("goal", "cancelled"), ("goal", "not_started")
    ]  # fmt: skip
    five_checks(run, models, key)


@pytest.mark.parametrize("tool", [{"name": "rocket"}, {"name": "shell", "arguments": "x"}, {"arguments": {}}])
def test_a_plan_with_a_tool_that_there_is_not_or_of_a_wrong_shape_is_refused(
    user: Api, tool: dict[str, object]
) -> None:
    problem = user.post("/v1/runs", {"input": "x", "plan": {"goals": [{"id": "a", "tool": tool}]}}, expect=422)
    assert problem["code"] in ("invalid_plan", "invalid_request")
    assert user.get("/v1/runs")["runs"] == []


# -- which tools there are -----------------------------------------------------------------------


def test_tools_are_off_until_they_are_allowed(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(_shell(key, "true"))
    run.wait_parked()
    assert models.calls(key=key)[0].tools == []
    (end,) = of_type(run, "turn_failed")
    assert "'shell'" in end["error"]
    assert "not offered" in end["error"]
    assert "the agent 'default' has no tools (see TOOLS_ALLOWED" in end["error"]
    assert of_type(run, "tool_call") == []
    plan = {"goals": [{"id": "a", "tool": {"name": "shell", "arguments": {"command": "true"}}}]}
    problem = api.post("/v1/runs", {"input": "x", "plan": plan}, expect=422)
    assert problem["code"] == "invalid_plan"
    assert "TOOLS_ALLOWED" in problem["detail"]
    five_checks(run, models, key)


def test_an_agent_has_the_tools_that_its_entry_names_and_without_a_list_all_that_are_allowed(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    agents = tmp_path / "agents.json"
    agents.write_text(json.dumps([{"name": "bare", "tools": []}, {"name": "armed", "tools": ["shell"]}, {"name": "all"}]))
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="shell", AGENTS_FILE=str(agents)) as own:
        user = own.api()
        for agent, tools in (("bare", []), ("armed", ["shell"]), ("all", ["shell"]), ("default", ["shell"])):
            run = user.start(_shell(f"{key}-{agent}", "echo ran"), agent=agent)
            run.wait_parked()
            assert models.calls(key=f"{key}-{agent}")[0].tools == tools
            assert len(of_type(run, "tool_call")) == len(tools)
            five_checks(run, models, f"{key}-{agent}")
        for goal_agent, status in (("bare", 422), ("armed", 201)):
            entry = {"id": "a", "agent": goal_agent, "tool": {"name": "shell", "arguments": {"command": "true"}}}
            made = user.post("/v1/runs", {"input": "x", "plan": {"goals": [entry]}}, expect=status)
        run = Run(user, made)
        assert run.wait_parked() == "awaiting_input"
        assert [event["type"] for event in all_events(run)].count("turn_completed") == 1


def test_an_agent_that_names_a_tool_which_is_not_allowed_keeps_the_server_from_starting(
    models: ModelServer, tmp_path: Path
) -> None:
    agents = tmp_path / "agents.json"
    agents.write_text(json.dumps([{"name": "armed", "tools": ["shell"]}]))
    refused = ServerProcess(tmp_path, models.url, AGENTS_FILE=str(agents))
    with pytest.raises(AssertionError, match="did not start"):
        refused.start()
    assert refused.process is not None
    assert refused.process.wait(30) != 0
    refused.process.stdout.close()  # type: ignore[union-attr]
