"""A compaction that is stopped, fails or is lost has changed nothing; what comes meanwhile does not disturb it."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.compacting import (
    SUMMARY,
    ask_compact,
    ask_next,
    compacted,
    compactions_of,
    start_talk,
    summary_calls,
)
from tests.support.five_checks import five_checks
from tests.support.going_back import NOTE, go_back, of_type, system_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, delivered_up_to, say_done, seen_at
from tests.support.servers import REMOTE_TOKEN, ServerProcess

pytestmark = pytest.mark.spread(2)

#: A stop is bounded by 1.8 s; one of a call that obeys is quick. Generous, as machines are noisy.
STOPPED_S = 1.0


def _start_compacting(api: Api, models: ModelServer, key: str, line: str | None = None, **fields: Any) -> tuple[Run, str]:
    """A run whose summary is being made, and never comes; with the id of that turn."""
    run = start_talk(api, key, line=line or script("silent", key=key), **fields)
    turn_id = ask_compact(run)["turn_id"]
    models.wait_open(1, key=key)
    return run, turn_id


def _check_unchanged(run: Run, models: ModelServer, key: str, transcript: list[dict[str, Any]]) -> None:
    """Nothing was compacted, nothing was said, and the next message works and hears of no stop."""
    assert run.transcript() == transcript
    assert compactions_of(run) == []
    request = ask_next(run, models, key)
    assert "Summary of" not in system_of(request)
    assert NOTE not in system_of(request)
    assert "question 2" in str(request.messages)
    five_checks(run, models, key)


@pytest.mark.parametrize("line", ["silent", "trickle tokens=4000 interval_ms=20", "silent headers=1", "busy status=429"])
@pytest.mark.parametrize("route", ["cancel", "/stopplan", "/sessions"])
def test_a_stop_during_the_summary_ends_in_a_second_and_leaves_the_history_as_it_was(
    any_server: ServerProcess, models: ModelServer, key: str, route: str, line: str
) -> None:
    run = start_talk(any_server.api(key), key, line=f"/script {line} key={key}", session_id=f"session-{key}")
    before = run.transcript()
    turn_id = ask_compact(run)["turn_id"]
    models.wait_calls(2, key=key)
    began = time.monotonic()
    if route == "cancel":
        answer = run.cancel(reason="wrong way", if_turn=turn_id)
    elif route == "/stopplan":
        answer = run.api.post(route)
    else:
        answer = Api(run.api.url, REMOTE_TOKEN).post(f"/sessions/session/{run.session_id}/stop")
    assert answer["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert time.monotonic() - began < STOPPED_S
    (end,) = of_type(run, "turn_cancelled")
    assert (end["turn_id"], end["messages"], end["cause"]) == (turn_id, [], "user")
    assert {item["outcome"] for item in end["receipt"] if item["kind"] == "model_call"} <= {"cancelled", "aborted"}
    _check_unchanged(run, models, key, before)


def test_what_was_stopped_can_be_asked_for_again_and_going_back_looks_past_it(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key, line=script("busy", times=1, retry_after_s=600, key=key))
    turn_id = ask_compact(run)["turn_id"]
    run.wait_event("retry", turn_id=turn_id)
    assert run.cancel(wait_ms=30_000)["turn_id"] == turn_id
    assert go_back(run, "regenerate")["replaces"] == run.first_turn, "what was stopped was no turn of the user's"
    run.wait_parked()
    assert compacted(run)["messages"] == 12
    five_checks(run, models, key)


def test_a_terminate_during_the_summary_ends_the_run_and_the_session_goes_on_whole(
    api: Api, models: ModelServer, key: str
) -> None:
    run, turn_id = _start_compacting(api, models, key)
    before = run.transcript()
    answer = run.terminate(wait_ms=30_000)
    assert (answer["stopped"], answer["turn_id"], answer["state"]) == (True, turn_id, "cancelled")
    assert run.transcript() == before
    assert compactions_of(run) == []
    second = api.start(script("strict", key=key), session_id=run.session_id)
    second.wait_parked()
    request = models.calls(key=key)[-1]
    assert "question 2" in str(request.messages)
    assert NOTE not in system_of(request)
    five_checks(second, models, key)


@pytest.mark.parametrize(("limit", "cause"), [("deadline_ms", "deadline"), ("idle_limit_ms", "liveness")])
def test_a_limit_ends_a_compaction_like_any_turn(
    api: Api, models: ModelServer, key: str, limit: str, cause: str
) -> None:
    run, turn_id = _start_compacting(api, models, key, **{limit: 1500})
    end = run.wait_event("turn_cancelled", turn_id=turn_id)
    run.wait_parked()
    assert (end["cause"], end["messages"]) == (cause, [])
    assert compactions_of(run) == []
    request = ask_next(run, models, key)
    assert NOTE not in system_of(request)
    five_checks(run, models, key)


@pytest.mark.parametrize(
    "fault",
    [script("error", status=400), script("nothing"), script("halfjson")],
    ids=["refused", "nothing", "half"],
)
def test_a_summary_that_fails_fails_its_turn_and_changes_nothing(
    api: Api, models: ModelServer, key: str, fault: str
) -> None:
    run = start_talk(api, key, line=f"{fault} key={key}")
    before = run.transcript()
    turn_id = ask_compact(run)["turn_id"]
    end = run.wait_event("turn_failed", turn_id=turn_id)
    assert (end["messages"], bool(end["error"])) == ([], True)
    run.wait_parked()
    _check_unchanged(run, models, key, before)


@pytest.mark.parametrize("on_server_lost", ["park", "resume"])
def test_a_server_that_is_killed_while_it_compacts_parks_the_run_and_has_changed_nothing(
    own: ServerProcess, models: ModelServer, key: str, on_server_lost: str
) -> None:
    _check_server_gone(own, models, key, on_server_lost, own.kill, "server_lost")


@pytest.mark.parametrize("on_server_lost", ["park", "resume"])
def test_a_shutdown_while_it_compacts_parks_the_run_and_has_changed_nothing(
    own: ServerProcess, models: ModelServer, key: str, on_server_lost: str
) -> None:
    _check_server_gone(own, models, key, on_server_lost, own.terminate, "shutdown")


def _check_server_gone(
    own: ServerProcess, models: ModelServer, key: str, on_server_lost: str, end: Callable[[], object], cause: str
) -> None:
    run, turn_id = _start_compacting(own.api(key), models, key, on_server_lost=on_server_lost)
    before = run.transcript()
    end()
    own.start()
    run = seen_at(own, run)
    assert run.wait_parked() == "awaiting_input"
    (cancelled,) = of_type(run, "turn_cancelled")
    assert (cancelled["turn_id"], cancelled["cause"], cancelled["messages"]) == (turn_id, cause, [])
    assert of_type(run, "turn_resumed") == []
    _check_unchanged(run, models, key, before)


@pytest.mark.parametrize("mode", ["queue", "steer", "redirect", "interrupt"])
def test_messages_that_come_while_it_compacts_do_not_disturb_it_and_follow_in_their_order(
    api: Api, models: ModelServer, key: str, mode: str
) -> None:
    run = start_talk(api, key, line=script("trickle", tokens=3, interval_ms=0, first_ms=2000, key=key))
    turn_id = ask_compact(run)["turn_id"]
    models.wait_open(1, key=key)
    sent = [run.say(f"{script('strict', key=key)}\n{number}", mode=mode) for number in range(3)]
    assert {each["disposition"] for each in sent} <= {"queued", "steered"}
    ids = [each["message_id"] for each in sent]
    assert delivered_up_to(run, ids[-1])[-3:] == ids
    run.wait_parked()
    (event,) = compactions_of(run)
    assert (event["turn_id"], event["summary"]) == (turn_id, SUMMARY)
    assert len(summary_calls(models, key)) == 1
    answered = [call for call in models.calls(key=key) if SUMMARY in system_of(call)]
    assert answered
    lines = "\n".join(each["content"] for each in run.transcript()).splitlines()
    assert [line for line in lines if line in ("0", "1", "2")] == ["0", "1", "2"]
    assert of_type(run, "stop_requested") == []
    five_checks(run, models, key)


def test_a_stop_of_a_compaction_keeps_what_waits_until_the_next_message(
    api: Api, models: ModelServer, key: str
) -> None:
    run, _ = _start_compacting(api, models, key)
    run.say(say_done(key))
    run.cancel(wait_ms=30_000)
    assert [each["held"] for each in api.get(f"{run.path}/inbox")["messages"]] == [True]
    last = run.say(script("strict", key=key))
    run.wait_event("message_delivered", message_id=last["message_id"])
    run.wait_parked()
    texts = [each["content"] for each in run.transcript()]
    assert texts[-4:] == [say_done(key), "t1 t2 ", script("strict", key=key), "All messages are in order."]
    assert compactions_of(run) == []
    five_checks(run, models, key)


def test_messages_that_were_kept_at_a_stop_wait_on_through_a_compaction(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key)
    sent = run.say(script("trickle", tokens=4000, interval_ms=20, key=key))
    run.wait_event("text", turn_id=sent["turn_id"])
    run.say(say_done(key))
    run.cancel(wait_ms=30_000)
    assert compacted(run)["messages"] > 0
    assert [each["held"] for each in api.get(f"{run.path}/inbox")["messages"]] == [True]
    assert all_events(run)[-1]["type"] == "awaiting_input"
    five_checks(run, models, key)
