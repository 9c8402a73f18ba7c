"""Rollback and regenerate: the newest turn leaves the transcript, and stays in the events."""

from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import NOTE, go_back, last_call, of_type, system_of, texts_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan, start_streaming
from tests.support.servers import ServerProcess

VERBS = ("rollback", "resume", "regenerate")
each_verb = pytest.mark.parametrize("verb", VERBS)


def _two_turns(api: Api, models: ModelServer, key: str, second: str = "stopped") -> Run:
    """One completed turn, and one that was stopped in the middle or has failed."""
    run = api.start(say_done(key))
    run.wait_parked()
    after = run.view()["last_seq"]
    if second == "stopped":
        run.say(script("trickle", tokens=4000, interval_ms=20, key=key))
        run.wait_event("text", after=after)
        run.cancel(wait_ms=30_000)
    else:
        run.say(script("error", status=400, key=key))
        run.wait_event("turn_failed", after=after)
        run.wait_parked()
    return run


def _said(run: Run) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in run.transcript()]


# -- rollback --------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["stopped", "failed"])
def test_a_rolled_back_turn_leaves_the_transcript_and_the_next_request_and_stays_in_the_events(
    api: Api, models: ModelServer, key: str, second: str
) -> None:
    run = _two_turns(api, models, key, second)
    turn_id = run.view()["turn_id"]
    before = all_events(run)
    first = [("user", say_done(key)), ("assistant", "t1 t2 ")]
    assert _said(run)[:2] == first
    assert len(_said(run)) == 4
    assert go_back(run, "rollback") == {"run_id": run.id, "turn_id": turn_id, "rolled_back": True}
    assert _said(run) == first
    after = all_events(run)
    assert after[:-1] == before
    assert (after[-1]["type"], after[-1]["rolled_back"]) == ("turn_rolled_back", turn_id)
    assert "turn_id" not in after[-1]  # nothing of a turn comes after its end
    run.say(script("strict", key=key))
    run.wait_parked()
    request = last_call(models, key)
    assert texts_of(request) == [*first, ("user", script("strict", key=key))]
    assert NOTE not in system_of(request)
    five_checks(run, models, key)


def test_a_repeated_rollback_changes_nothing_and_never_reaches_the_turn_before(
    api: Api, models: ModelServer, key: str
) -> None:
    run = _two_turns(api, models, key)
    turn_id = run.view()["turn_id"]
    go_back(run, "rollback")
    said, last = _said(run), run.view()["last_seq"]
    for fields in ({}, {"if_turn": turn_id}):
        assert go_back(run, "rollback", **fields) == {"run_id": run.id, "turn_id": turn_id, "rolled_back": False}
    assert (_said(run), run.view()["last_seq"]) == (said, last)
    five_checks(run, models, key)


def test_what_was_stopped_in_a_rolled_back_turn_can_still_be_looked_up(
    api: Api, models: ModelServer, key: str
) -> None:
    run = _two_turns(api, models, key)
    turn_id = run.view()["turn_id"]
    receipts = run.api.get(f"{run.path}/receipts")["receipts"]
    go_back(run, "rollback")
    assert run.api.get(f"{run.path}/receipts")["receipts"] == receipts
    assert receipts[-1]["turn_id"] == turn_id
    assert run.goals(turn_id)["answer"]["status"] == "CANCELLED"
    five_checks(run, models, key)


def test_a_rollback_of_the_only_turn_leaves_an_empty_transcript(api: Api, models: ModelServer, key: str) -> None:
    run = start_streaming(api, models, key)
    run.cancel(wait_ms=30_000)
    go_back(run, "rollback", if_turn=run.first_turn)
    assert run.transcript() == []
    five_checks(run, models, key)
    assert texts_of(last_call(models, key)) == [("user", script("strict", key=key))]


def test_a_turn_after_a_rollback_can_be_rolled_back_too(api: Api, models: ModelServer, key: str) -> None:
    run = _two_turns(api, models, key)
    go_back(run, "rollback")
    after = run.view()["last_seq"]
    run.say(script("trickle", tokens=4000, interval_ms=20, key=key))
    run.wait_event("text", after=after)
    run.cancel(wait_ms=30_000)
    assert go_back(run, "rollback")["rolled_back"] is True
    assert len(_said(run)) == 2
    assert len(of_type(run, "turn_rolled_back")) == 2
    five_checks(run, models, key)


def test_messages_that_were_kept_at_the_stop_wait_on_after_a_rollback(api: Api, models: ModelServer, key: str) -> None:
    run = start_streaming(api, models, key)
    run.say(f"{say_done(key)}\nkept")
    run.cancel(wait_ms=30_000)
    go_back(run, "rollback")
    (kept,) = run.api.get(f"{run.path}/inbox")["messages"]
    assert kept["held"] is True
    run.say(say_done(key))
    run.wait_event("turn_completed", turn_id=run.wait_event("turn_started", number=3)["turn_id"])
    assert [text for role, text in _said(run) if role == "user"] == [f"{say_done(key)}\nkept", say_done(key)]
    five_checks(run, models, key)


def test_a_rollback_survives_a_kill(own: ServerProcess, models: ModelServer, key: str) -> None:
    run = _two_turns(own.api(), models, key)
    go_back(run, "rollback")
    said = run.transcript()
    own.kill()
    own.start()
    run = seen_at(own, run)
    assert run.transcript() == said
    assert go_back(run, "rollback")["rolled_back"] is False
    five_checks(run, models, key)
    assert NOTE not in system_of(last_call(models, key))


# -- what is refused ---------------------------------------------------------------------------


@each_verb
def test_a_busy_run_does_not_go_back(api: Api, models: ModelServer, key: str, verb: str) -> None:
    run = start_streaming(api, models, key)
    assert go_back(run, verb, 409)["code"] == "run_is_busy"
    assert go_back(run, verb, 409, if_turn="t_other")["code"] == "turn_is_over"
    assert run.state == "running"
    run.cancel()
    five_checks(run, models, key)


@pytest.mark.parametrize("verb", ["rollback", "resume"])
def test_a_turn_that_came_to_its_end_is_neither_rolled_back_nor_resumed(
    api: Api, models: ModelServer, key: str, verb: str
) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    said, last = run.transcript(), run.view()["last_seq"]
    assert go_back(run, verb, 409)["code"] == "turn_not_stopped"
    assert (run.transcript(), run.view()["last_seq"]) == (said, last)
    five_checks(run, models, key)


def test_a_rolled_back_turn_is_not_resumed(api: Api, models: ModelServer, key: str) -> None:
    run = _two_turns(api, models, key)
    go_back(run, "rollback")
    assert go_back(run, "resume", 409)["code"] == "turn_not_stopped"
    five_checks(run, models, key)


@each_verb
def test_the_checks_of_going_back_come_in_their_order(
    server: ServerProcess, api: Api, models: ModelServer, key: str, verb: str
) -> None:
    parked = start_streaming(api, models, key)
    parked.cancel(wait_ms=30_000)
    ended = start_streaming(api, models, key)
    ended.terminate(wait_ms=30_000)
    batch = start_streaming(api, models, f"{key}-batch", interactive=False)
    other: dict[str, Any] = {"if_turn": "t_other"}
    assert go_back(parked, verb, 409, **other)["code"] == "turn_is_over"
    assert go_back(ended, verb, 409, **other)["code"] == "run_is_over"
    assert go_back(ended, verb, 409, if_turn=ended.first_turn)["code"] == "run_is_over"
    assert go_back(batch, verb, 409, **other)["code"] == "turn_is_over"
    assert go_back(batch, verb, 409)["code"] == "not_interactive"
    stranger = server.api(f"not-{key}")
    for path in (parked.path, ended.path, batch.path, "/v1/runs/r_01JZZZZZZZZZZZZZZZZZZZZZZZ"):
        assert stranger.post(f"{path}/{verb}", expect=404)["code"] == "not_found"
    assert stranger.post(f"{parked.path}/{verb}", {"turn": "x"}, expect=422)["errors"][0]["field"] == "turn"
    reader = server.api(key, scope="runs:read runs:stop")
    assert reader.post(f"{parked.path}/{verb}", expect=403)["code"] == "insufficient_scope"
    assert of_type(parked, "turn_rolled_back", "turn_resumed") == []
    assert parked.view()["turn_id"] == parked.first_turn
    batch.terminate(wait_ms=30_000)
    five_checks(parked, models, key)


# -- regenerate --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["completed", "stopped", "failed", "rolled back"])
def test_a_regenerated_turn_asks_the_same_message_again_in_the_place_of_the_old_one(
    api: Api, models: ModelServer, key: str, ending: str
) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    name, options = {"completed": ("trickle", {"tokens": 1}), "failed": ("busy", {"status": 400, "times": 1})}.get(
        ending, ("busy", {"times": 1, "retry_after_s": 60})
    )
    line, after = script(name, key=f"{key}-again", **options), run.view()["last_seq"]
    run.say(line)
    if ending in ("stopped", "rolled back"):
        run.wait_event("retry", after=after)
        run.cancel()
    run.wait_parked()
    old = run.view()["turn_id"]
    if ending == "rolled back":
        go_back(run, "rollback")
    answer = go_back(run, "regenerate", if_turn=old)
    assert (answer["run_id"], answer["replaces"]) == (run.id, old)
    assert answer["turn_id"] != old
    run.wait_event("turn_completed", turn_id=answer["turn_id"])
    run.wait_parked()
    said = run.transcript()
    assert [each["content"] for each in said[:-1]] == [say_done(key), "t1 t2 ", line]
    assert said[-1]["content"].startswith("t1 ")
    assert [each["turn_id"] for each in said[2:]] == [answer["turn_id"]] * 2
    first, second = models.calls(key=f"{key}-again")
    assert first.messages == second.messages  # the model is not told of the first time
    assert [event["rolled_back"] for event in of_type(run, "turn_rolled_back")] == [old]
    five_checks(run, models, key)


def test_a_regenerated_turn_makes_its_whole_plan_anew(api: Api, models: ModelServer, key: str) -> None:
    keys = f"{key}-a", f"{key}-b"
    run = start_plan(api, goal("a", say_done(keys[0])), goal("b", say_done(keys[1]), "a"))
    run.wait_parked()
    turn_id = go_back(run, "regenerate")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert [len(models.calls(key=each)) for each in keys] == [2, 2]
    assert run.goals().keys() == run.goals(run.first_turn).keys() == {"a", "b"}
    assert _said(run) == [("user", "work on this"), ("assistant", "t1 t2 \n\nt1 t2 ")]
    five_checks(run, models, key)


def test_messages_that_were_kept_at_the_stop_come_after_the_regenerated_turn(
    api: Api, models: ModelServer, key: str
) -> None:
    run = api.start(script("busy", times=1, retry_after_s=60, key=key))
    run.wait_event("retry")
    message = run.say(f"{say_done(key)}\nkept")["message_id"]
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "regenerate")["turn_id"]
    delivered = run.wait_event("message_delivered", message_id=message)
    ended = run.wait_event("turn_completed", turn_id=turn_id)
    assert ended["seq"] < delivered["seq"]
    five_checks(run, models, key)
