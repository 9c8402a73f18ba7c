"""What was said stays, a stop is told to the model once, and the next message works."""

from typing import Any

from tests.support.api_client import Api
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import goal, say_done, start_plan, start_silent, start_streaming
from tests.support.servers import ServerProcess

#: By what a reader of a request knows the stop note.
NOTE = "was stopped"


def _roles(said: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in said]


def _last_call(models: ModelServer, key: str) -> ServedCall:
    return models.calls(key=key)[-1]


def _notes(call: ServedCall) -> list[str]:
    return [message["role"] for message in call.messages if NOTE in str(message["content"])]


def test_the_transcript_alternates_whatever_became_of_the_turns(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    for line in (script("error", status=400, key=key), script("html", key=key), say_done(key)):
        run.say(line)
        run.wait_parked()
    run.say(script("silent", key=key))
    models.wait_open(1, key=key)
    run.cancel()
    five_checks(run, models, key)
    said = run.transcript()
    assert _roles(said) == ["user", "assistant"] * 6
    assert all(message["content"] for message in said)
    assert [message["turn_id"] for message in said[::2]] == [message["turn_id"] for message in said[1::2]]


def test_partial_text_is_kept_and_marked_and_is_what_was_seen(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(), models, key)
    run.cancel(wait_ms=30_000)
    events = run.events()
    said = run.transcript()[-1]
    assert said["content"] == "".join(event["text"] for event in events if event["type"] == "text")
    assert (said["role"], said["stopped"], said["cause"]) == ("assistant", True, "user")
    five_checks(run, models, key)


def test_three_stops_in_a_row_each_keep_their_own_text(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(say_done(key))
    run.wait_parked()
    seen = []
    for number in range(3):
        after = run.view()["last_seq"]
        run.say(script("trickle", tokens=900, interval_ms=5, reasoning=0, key=f"{key}-{number}"))
        models.wait_tokens(4 * (number + 1), key=f"{key}-{number}")
        run.wait_event("text", after=after)
        run.cancel(wait_ms=30_000)
        events = run.events(after=after)
        seen.append("".join(event["text"] for event in events if event["type"] == "text"))
    assert [message["content"] for message in run.transcript()[3::2]] == seen
    assert all(seen)
    assert [message.get("stopped", False) for message in run.transcript()[1::2]] == [False, True, True, True]
    five_checks(run, models, key)


def test_a_plan_that_is_stopped_keeps_the_finished_results_and_the_partial_text(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    slow = script("trickle", tokens=900, interval_ms=10, key=key)
    run = start_plan(any_server.api(), goal("done", say_done(key)), goal("slow", slow), goal("never", slow, "slow"))
    run.wait_event("goal_status", goal_id="done", status="COMPLETED")
    run.wait_event("text", goal_id="slow")
    run.cancel(wait_ms=30_000)
    assert run.transcript()[-1]["content"].startswith("t1 t2 \n\nt1 ")
    assert run.goals()["done"]["result"] == "t1 t2 "
    five_checks(run, models, key)


def test_the_model_is_told_of_a_stop_once_and_neither_at_the_end_nor_in_the_users_words(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(), models, key)
    run.cancel(wait_ms=30_000)
    assert _notes(_last_call(models, key)) == []
    run.say(say_done(key))
    run.wait_parked()
    told = _last_call(models, key)
    assert _notes(told) == ["system"]
    assert str(told.messages).count(NOTE) == 1
    assert told.messages[-1] == {"role": "user", "content": say_done(key)}
    run.say(say_done(key))
    run.wait_parked()
    assert _notes(_last_call(models, key)) == []
    assert NOTE not in str([message["content"] for message in run.transcript()])
    five_checks(run, models, key)


def test_the_model_is_told_once_a_request_where_the_next_turn_has_a_plan(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(server.api(), models, key, planning="none")
    run.terminate(wait_ms=30_000)
    again = start_plan(
        run.api, goal("a", say_done(f"{key}-2")), goal("b", say_done(f"{key}-2")), session_id=run.session_id
    )
    again.wait_parked()
    assert [_notes(call) for call in models.calls(key=f"{key}-2")] == [["system"], ["system"]]
    five_checks(again, models, key)


def test_the_history_that_is_sent_is_the_one_that_is_shown(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(), models, key)
    run.cancel(wait_ms=30_000)
    for line in (script("error", status=400, key=key), say_done(key)):
        run.say(line)
        run.wait_parked()
    sent = [message for message in _last_call(models, key).messages if message["role"] != "system"]
    shown = [{"role": each["role"], "content": each["content"]} for each in run.transcript()]
    assert sent == shown[:-1]
    five_checks(run, models, key)
