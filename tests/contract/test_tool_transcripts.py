"""What a stop among tools leaves: every call with its result, one stop mark, one note, and nothing pending."""

import json
import time
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import check_results, five_checks, processes_of, wait_no_process
from tests.support.going_back import NOTE, last_call, of_type, system_of, texts_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, seen_at, start_plan
from tests.support.servers import LocalServer, ServerProcess, gate, wait_until

pytestmark = pytest.mark.spread(2)

#: Ends at once; runs until it is stopped; is deaf to TERM.
DONE, ENDLESS, STUBBORN = (
    "echo done",
    "echo begun; sleep 600 & sleep 600",
    "trap '' TERM; echo begun; while :; do sleep 600; done",
)


def _shell(key: str, *commands: str, **options: Any) -> str:
    arguments = [json.dumps({"command": command}, separators=(",", ":")) for command in commands]
    return script("toolcall", name=["shell"] * len(commands), arguments=arguments, tokens=2, key=key, **options)


def _wait_begun(run: Run, number: int = 1, after: int = 0) -> None:
    """Until so many tools have printed that they have begun."""
    seen: list[str] = []

    def begun(event: dict[str, Any]) -> bool:
        seen.extend([event["call_id"]] if event.get("text") == "begun\n" else [])
        return len(seen) == number

    run.events(begun, after=after)


@pytest.fixture
def user(shell_server: ServerProcess, key: str) -> Api:
    """A user of the server with the shell."""
    return shell_server.api(key)


# -- calls and results -----------------------------------------------------------------------


def test_of_three_tools_the_finished_one_keeps_its_result_and_the_others_are_cancelled_in_the_original_order(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(_shell(key, ENDLESS, DONE, STUBBORN))
    _wait_begun(run, 2)
    run.wait_event("tool_result")
    answer = run.cancel(wait_ms=30_000)
    called = of_type(run, "tool_call")
    ids = [event["call_id"] for event in called]
    asked, *results = run.transcript()[1:]
    assert [call["id"] for call in asked["tool_calls"]] == ids
    assert [result["tool_call_id"] for result in results] == ids
    endless, done, stubborn = (result["content"] for result in results)
    assert json.loads(done)["stdout"] == "done\n"
    for content in (endless, stubborn):
        words, shown = content.split("\n", 1)
        assert words == "cancelled by operator"
        partial = json.loads(shown)
        assert (partial["stdout"], partial["exit_code"], partial["success"]) == ("begun\n", -1, False)
        assert partial["interrupted"] is True
    outcomes = {item["id"]: item["outcome"] for item in answer["receipt"] if item["kind"] == "tool"}
    assert outcomes == {ids[0]: "killed", ids[2]: "killed"}
    five_checks(run, models, key)
    sent = [message for message in last_call(models, key).messages if message["role"] != "system"]
    assert [message.get("tool_call_id") for message in sent[2:5]] == ids


def test_a_stop_before_any_tool_has_begun_gives_each_call_its_result(models: ModelServer, key: str, tmp_path: Any) -> None:
    with LocalServer(tmp_path, models.url, tools_allowed=("shell",)) as local, gate("tool_batch.before_tools") as held:
        run = local.api().start(_shell(key, DONE, DONE))
        held.wait_reached()
        assert run.cancel()["stopped"] is True
        held.open()
        run.wait_parked()
        contents = [message["content"] for message in run.transcript() if message["role"] == "tool"]
        assert contents == ["cancelled by operator"] * 2
        (entry,) = run.api.get(f"{run.path}/receipts")["receipts"]
        assert [(item["kind"], item["outcome"]) for item in entry["receipt"]] == [
            ("tool", "not_started"), ("tool", "not_started"), ("goal", "cancelled")
        ]  # fmt: skip
        assert of_type(run, "tool_output") == []
        five_checks(run, models, key)


def test_a_stop_between_a_tools_end_and_its_record_keeps_the_calls_valid(
    models: ModelServer, key: str, tmp_path: Any
) -> None:
    with LocalServer(tmp_path, models.url, tools_allowed=("shell",)) as local, gate("tool_batch.before_result") as held:
        run = local.api().start(_shell(key, DONE))
        held.wait_reached()
        assert run.cancel()["stopped"] is True
        held.open()
        run.wait_parked()
        (result,) = of_type(run, "tool_result")
        assert "done" in result["content"]  # it is known what it did, although the stop came first
        assert len(models.calls(key=key)) == 1
        five_checks(run, models, key)


@pytest.mark.parametrize("command", [ENDLESS, STUBBORN], ids=["obedient", "deaf to TERM"])
def test_a_stop_inside_a_tool_is_answered_while_it_runs_and_the_next_message_works(
    user: Api, models: ModelServer, key: str, command: str
) -> None:
    run = user.start(_shell(key, command))
    _wait_begun(run)
    asked_at = time.monotonic()
    assert run.cancel()["stopped"] is True
    assert time.monotonic() - asked_at < 2
    run.wait_parked()
    assert time.monotonic() - asked_at < 4
    assert len(models.calls(key=key)) == 1
    assert processes_of(all_events(run)) == []
    five_checks(run, models, key)


def test_another_cause_than_the_user_is_named_in_the_results(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(_shell(key, ENDLESS), deadline_ms=1000)
    run.wait_event("turn_cancelled")
    run.wait_parked()
    (result,) = [message for message in run.transcript() if message["role"] == "tool"]
    assert result["content"].startswith("cancelled: deadline\n")
    five_checks(run, models, key)


def test_a_tool_that_runs_into_its_own_time_limit_ends_nothing_else(user: Api, models: ModelServer, key: str) -> None:
    arguments = {"command": ENDLESS, "timeout_ms": 300}
    run = user.start(script("toolcall", arguments=arguments, tokens=2, key=key))
    assert run.wait_parked() == "awaiting_input"
    (result,) = of_type(run, "tool_result")
    answer = json.loads(result["content"])
    assert (answer["stdout"], answer["exit_code"], "interrupted" in answer) == ("begun\n", -1, False)
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert of_type(run, "stop_requested") == []
    five_checks(run, models, key)


# -- the note ----------------------------------------------------------------------------------


def test_the_next_request_tells_of_the_stop_once_and_neither_at_its_end_nor_in_the_users_text(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(_shell(key, ENDLESS, text=1))
    _wait_begun(run)
    run.cancel(wait_ms=30_000)
    line = script("strict", key=key)
    for expected in (1, 0):
        after = run.view()["last_seq"]
        run.say(line)
        run.wait_event("turn_completed", after=after)
        request = last_call(models, key)
        assert str(request.messages).count(NOTE) == system_of(request).count(NOTE) == expected
        assert request.messages[-1] == {"role": "user", "content": line}
    assert NOTE not in str(run.transcript())
    five_checks(run, models, key)


# -- what is left ------------------------------------------------------------------------------


def _check_nothing_pending(run: Run) -> None:
    events = all_events(run)
    assert {event["call_id"] for event in events if event["type"] == "tool_call"} == {
        event["call_id"] for event in events if event["type"] == "tool_result"
    }
    assert all(each["status"] in ("COMPLETED", "FAILED", "CANCELLED") for each in run.goals(run.first_turn).values())
    check_results(run.transcript())
    marks = [message["role"] for message in run.transcript() if message.get("stopped")]
    assert marks == ["assistant"]


def _check_as_seen(run: Run) -> None:
    """What the transcript tells of the first turn is what its events told."""
    told = [event for event in all_events(run) if event.get("turn_id") == run.first_turn]
    said = [message for message in run.transcript() if message["turn_id"] == run.first_turn]
    assert "".join(each["content"] for each in said if each["role"] == "assistant") == "".join(
        event["text"] for event in told if event["type"] == "text"
    )
    assert {each["tool_call_id"]: each["content"] for each in said if each["role"] == "tool"} == {
        event["call_id"]: event["content"] for event in told if event["type"] == "tool_result"
    }
    calls = [call for message in said for call in message.get("tool_calls", ())]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        (event["call_id"], event["name"], event["arguments"]) for event in told if event["type"] == "tool_call"
    ]


def test_after_a_stop_the_transcript_is_what_was_seen_and_nothing_is_pending_also_after_a_kill(
    own_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    run = own_shell.api().start(_shell(key, DONE, ENDLESS, text=1))
    _wait_begun(run)
    run.cancel(wait_ms=30_000)
    _check_nothing_pending(run)
    _check_as_seen(run)
    said = run.transcript()
    own_shell.kill()
    own_shell.start()
    run = seen_at(own_shell, run)
    assert run.transcript() == said
    _check_nothing_pending(run)
    wait_no_process(run)
    five_checks(run, models, key)


def test_a_kill_inside_a_tool_leaves_no_process_and_no_open_call(
    own_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    run = own_shell.api().start(_shell(key, DONE, ENDLESS, STUBBORN, text=1))
    _wait_begun(run, 2)
    run.wait_event("tool_result")
    own_shell.kill()
    own_shell.start()
    run = seen_at(own_shell, run)
    assert run.state == "awaiting_input"
    _check_nothing_pending(run)
    _check_as_seen(run)
    done, *lost = (message["content"] for message in run.transcript() if message["role"] == "tool")
    assert json.loads(done)["stdout"] == "done\n"
    assert len(lost) == 2
    for content in lost:
        words, shown = content.split("\n", 1)
        assert (words, json.loads(shown)["stdout"]) == ("cancelled: server_lost", "begun\n")
    (entry,) = run.api.get(f"{run.path}/receipts")["receipts"]
    assert [item["kind"] for item in entry["receipt"]] == ["tool", "tool", "goal"]
    # The new server may be there before the supervisor's second of grace is over.
    wait_until(lambda: not processes_of(all_events(run)), "no process of the killed server is left")
    five_checks(run, models, key)


def test_a_shutdown_inside_a_tool_ends_its_processes_and_says_why(
    own_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    run = own_shell.api().start(_shell(key, STUBBORN))
    _wait_begun(run)
    events = run.events(lambda event: event["type"] == "tool_call")
    assert processes_of(events) != []
    assert own_shell.terminate() == 0
    assert processes_of(events) == []
    own_shell.start()
    run = seen_at(own_shell, run)
    (result,) = [message for message in run.transcript() if message["role"] == "tool"]
    assert result["content"].startswith("cancelled: shutdown\n")
    five_checks(run, models, key)


def test_tools_of_several_goals_are_each_told_at_their_goal_and_not_in_the_sessions_history(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_plan(user, goal("a", _shell(key, ENDLESS)), goal("b", _shell(key, DONE)), goal("c", _shell(key, ENDLESS)))
    _wait_begun(run, 2)
    run.wait_event("goal_status", goal_id="b", status="COMPLETED")
    run.cancel(wait_ms=30_000)
    assert [(message["role"], message["content"]) for message in run.transcript()] == [
        ("user", "work on this"), ("assistant", "t1 t2 ")
    ]  # fmt: skip
    assert {event["goal_id"]: event["is_error"] for event in of_type(run, "tool_result")} == {
        "a": True, "b": False, "c": True
    }  # fmt: skip
    five_checks(run, models, key)


# -- another kind of provider -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then"),
    [("openai", "de2generator"), ("de2generator", "openai"), ("openai", "anthropic"), ("anthropic", "de2generator")],
)
def test_a_session_that_was_stopped_in_a_tool_goes_on_under_another_kind_of_provider(
    models: ModelServer, key: str, tmp_path: Any, first: str, then: str
) -> None:
    urls = {"openai": f"{models.url}/v1", "de2generator": models.url, "anthropic": models.url}
    fields = {"TOOLS_ALLOWED": "shell", "LLM_API_KEY": "none"}
    with ServerProcess(tmp_path, urls[first], LLM_PROVIDER=first, **fields) as before:
        run = before.api().start(_shell(key, DONE, ENDLESS, text=1))
        _wait_begun(run)
        run.cancel(wait_ms=30_000)
    with ServerProcess(tmp_path, urls[then], LLM_PROVIDER=then, **fields) as after:
        run = seen_at(after, run)
        said = run.transcript()
        five_checks(run, models, key)
        request = last_call(models, key)
        assert system_of(request).count(NOTE) == 1
        after_seq = run.view()["last_seq"]
        run.say(_shell(key, DONE))
        run.wait_event("turn_completed", after=after_seq)
        assert run.transcript()[: len(said)] == said
    assert texts_of(last_call(models, key))[0] == ("user", said[0]["content"])
