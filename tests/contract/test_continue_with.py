"""A batch run whose turn is stopped and which goes on with another prompt; only a batch run can be told so."""

from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks, wait_no_process
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan, start_streaming
from tests.support.problems import assert_problem
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.spread(2)

NOTE = "was stopped"
#: Deaf to TERM: the turn cannot end in the second after the stop's answer.
DEAF = {"command": "trap '' TERM; echo begun; while :; do sleep 600; done"}


def _go_on(key: str) -> str:
    return script("strict", key=key)


def _started(run: Run) -> list[str]:
    return [event["input"] for event in all_events(run) if event["type"] == "turn_started"]


def _of_type(run: Run, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in all_events(run) if event["type"] in kinds]


# -- for batch runs only ---------------------------------------------------------------------


def test_an_interactive_run_that_is_told_how_to_go_on_refuses_and_is_not_stopped(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_streaming(api, models, key)
    problem = run.cancel(expect=422, continue_with=_go_on(key), inbox="drop")
    assert problem["code"] == "invalid_request"
    assert [error["field"] for error in problem["errors"]] == ["continue_with"]
    assert run.state == "running"
    assert run.api.get(f"{run.path}/inbox")["messages"] == []
    after = run.view()["last_seq"]
    run.wait_event("text", after=after)
    run.cancel(wait_ms=30_000)
    last = run.view()["last_seq"]
    assert run.cancel(expect=422, continue_with=_go_on(key))["errors"][0]["field"] == "continue_with"
    assert run.view()["last_seq"] == last
    assert len(_of_type(run, "stop_requested")) == 1
    five_checks(run, models, key)


@pytest.mark.parametrize("blank", ["", " \n\t", None, 7, ["x"]], ids=["empty", "blank", "null", "number", "list"])
def test_a_prompt_that_says_nothing_is_no_prompt_to_go_on_with(
    api: Api, models: ModelServer, key: str, blank: object
) -> None:
    run = start_streaming(api, models, key, interactive=False)
    problem = run.cancel(expect=409 if blank is None else 422, continue_with=blank)
    if blank is None:  # the same as not saying how it goes on
        assert problem["code"] == "not_interactive"
    else:
        assert problem["errors"][0]["field"] == "continue_with"
    assert run.state == "running"
    assert run.terminate()["stopped"] is True
    five_checks(run, models, key)


# -- going on --------------------------------------------------------------------------------


def test_a_batch_run_goes_on_in_a_turn_of_its_own_and_ends_with_that(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(key), models, key, interactive=False)
    answer = run.cancel(continue_with=_go_on(key), wait_ms=30_000)
    assert (answer["stopped"], answer["turn_id"], answer["parked"]) == (True, run.first_turn, False)
    assert run.wait_parked() == "completed"
    events = all_events(run)
    queued, delivered = _of_type(run, "message_queued", "message_delivered")
    second = [event for event in events if event["type"] == "turn_started"][1]
    assert (queued["turn_id"], queued["text"]) == (run.first_turn, _go_on(key))
    assert (delivered["message_id"], delivered["turn_id"]) == (queued["message_id"], second["turn_id"])
    assert (second["number"], second["message_id"]) == (2, queued["message_id"])
    assert "awaiting_input" not in [event["type"] for event in events]
    assert run.goals(second["turn_id"])["answer"]["status"] == "COMPLETED"
    five_checks(run, models, key)


def test_what_was_said_stays_and_the_model_is_told_of_the_stop_once(api: Api, models: ModelServer, key: str) -> None:
    run = start_streaming(api, models, key, interactive=False)
    run.cancel(continue_with=_go_on(key))
    assert run.wait_parked() == "completed"
    first, cut, second, answer = run.transcript()
    assert cut["content"].startswith("t1 ")
    assert (cut["stopped"], cut["cause"]) == (True, "user")
    assert (second["role"], second["content"]) == ("user", _go_on(key))
    assert (answer["content"], answer.get("stopped")) == ("All messages are in order.", None)
    request = models.calls(key=key)[1].messages
    assert [message["content"] for message in request[1:]] == [
        first["content"], cut["content"], second["content"]
    ]  # fmt: skip
    assert (request[0]["role"], request[0]["content"].count(NOTE)) == ("system", 1)
    five_checks(run, models, key)


def test_a_batch_run_that_goes_on_can_be_stopped_and_told_to_go_on_again(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(key), models, key, interactive=False)
    for number in (2, 3):
        line = script("trickle", tokens=4000, interval_ms=20, key=key) + f"\nnumber {number}"
        after = run.view()["last_seq"]
        run.cancel(continue_with=line)
        run.wait_event("turn_started", after=after, number=number)
        run.wait_event("text", after=run.wait_event("turn_started", number=number)["seq"])
    run.cancel(continue_with=_go_on(key))
    assert run.wait_parked() == "completed"
    ends = [event["type"] for event in _of_type(run, "turn_cancelled", "turn_completed", "turn_failed")]
    assert ends == ["turn_cancelled"] * 3 + ["turn_completed"]
    assert [entry["cause"] for entry in run.api.get(f"{run.path}/receipts")["receipts"]] == ["user"] * 3
    five_checks(run, models, key)


def test_a_plan_of_a_batch_run_that_is_stopped_goes_on_with_a_message_and_not_with_the_plan(
    api: Api, models: ModelServer, key: str
) -> None:
    plan = (goal("a", say_done(key)), goal("b", script("silent", key=key), "a"), goal("c", say_done(key), "b"))
    run = start_plan(api, *plan, interactive=False)
    models.wait_calls(2, key=key)
    run.cancel(continue_with=_go_on(key))
    assert run.wait_parked() == "completed"
    assert {name: each["status"] for name, each in run.goals(run.first_turn).items()} == {
        "a": "COMPLETED", "b": "CANCELLED", "c": "CANCELLED"
    }  # fmt: skip
    assert run.goals().keys() == {"answer"}
    five_checks(run, models, key)


def test_a_turn_that_fails_after_a_batch_run_went_on_fails_the_run(api: Api, models: ModelServer, key: str) -> None:
    run = start_streaming(api, models, key, interactive=False)
    run.cancel(continue_with=script("error", status=400, key=key))
    assert run.wait_parked() == "failed"
    assert [event["type"] for event in all_events(run)[-2:]] == ["turn_failed", "run_failed"]
    five_checks(run, models, key)


# -- crashes ---------------------------------------------------------------------------------


def test_a_batch_run_goes_on_after_a_kill_between_the_answer_to_its_stop_and_the_end_of_its_turn(
    own_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    run = own_shell.api().start(script("toolcall", arguments=DEAF, key=key), interactive=False)
    run.wait_event("tool_output", text="begun\n")
    answer = run.cancel(continue_with=_go_on(key), reason="this way")
    own_shell.kill()
    assert answer["stopped"] is True
    own_shell.start()
    run = seen_at(own_shell, run)
    assert run.wait_parked() == "completed"
    assert _started(run)[1:] == [_go_on(key)]
    end = _of_type(run, "turn_cancelled")[0]
    assert (end["turn_id"], end["cause"], end["reason"]) == (run.first_turn, "user", "this way")
    assert [item["kind"] for item in end["receipt"]] == ["tool", "goal"]
    assert all(item["how"] == "the server that ran it is gone" for item in end["receipt"])
    result = next(message for message in run.transcript() if message["role"] == "tool")
    assert result["content"].startswith("cancelled by operator")
    wait_no_process(run)
    five_checks(run, models, key)


@pytest.mark.parametrize(("on_server_lost", "state"), [("resume", "completed"), ("park", "failed")])
def test_a_shutdown_before_the_next_turn_leaves_it_to_the_next_server_if_the_run_is_to_be_resumed(
    own_shell: ServerProcess, models: ModelServer, key: str, on_server_lost: str, state: str
) -> None:
    run = own_shell.api().start(
        script("toolcall", arguments=DEAF, key=key), interactive=False, on_server_lost=on_server_lost
    )
    run.wait_event("tool_output", text="begun\n")
    assert run.cancel(continue_with=_go_on(key))["stopped"] is True
    assert own_shell.terminate() == 0
    own_shell.start()
    run = seen_at(own_shell, run)
    assert run.wait_parked() == state
    assert _started(run)[1:] == [_go_on(key)]
    causes = [event["cause"] for event in _of_type(run, "turn_cancelled")]
    assert causes == (["user"] if state == "completed" else ["user", "shutdown"])
    five_checks(run, models, key)


def test_a_token_that_may_only_stop_cannot_say_how_to_go_on(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = server.api(key).start(script("silent", key=key), interactive=False)
    models.wait_open(1, key=key)
    stopper = server.api(key, scope="runs:stop")
    answer = stopper.request("POST", f"{run.path}/cancel", json={"continue_with": _go_on(key)})
    assert_problem(answer, 403, "insufficient_scope")
    assert run.state == "running"
    assert stopper.post(f"{run.path}/terminate", {"wait_ms": 30_000})["stopped"] is True
    five_checks(run, models, key, is_batch=True)
