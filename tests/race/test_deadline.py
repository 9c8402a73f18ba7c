"""The deadline of a turn against its end, against a stop, and in a batch run."""

import pytest

from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import start_silent
from tests.support.servers import LocalServer, gate, wait_until

#: Of each turn, so also of the message with which the five checks end.
DEADLINE_MS = 2500


def test_a_deadline_stops_the_turn_with_its_own_cause(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key, deadline_ms=DEADLINE_MS)
    assert run.wait_parked() == "awaiting_input"
    end = run.wait_event("turn_cancelled")
    assert end["cause"] == "deadline"
    assert run.goals()["answer"]["cause"] == "deadline"
    assert run.transcript()[-1]["content"] == "[stopped: deadline before any text]"
    five_checks(run, models, key)


def test_a_deadline_that_fires_just_before_the_end_is_the_end(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("chatbot.plan_has_run") as at_end, gate("turn.requests_cancelled") as stopping:
        run = local.api().start(script("strict", key=key), deadline_ms=DEADLINE_MS)
        at_end.wait_reached()
        stopping.wait_reached()
    assert run.wait_parked() == "awaiting_input"
    assert run.wait_event("turn_cancelled")["cause"] == "deadline"
    five_checks(run, models, key)


def test_a_deadline_that_comes_too_late_changes_nothing_and_does_not_hit_the_next_turn(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("chatbot.plan_has_run") as at_end, gate("engine.before_stop") as late:
        run = local.api().start(script("strict", key=key), deadline_ms=DEADLINE_MS)
        at_end.wait_reached()
        late.wait_reached()
        run.say(script("trickle", tokens=3, interval_ms=5, key=key))
        at_end.open()
        run.wait_event("turn_completed", turn_id=run.first_turn)
        late.open()
    wait_until(lambda: run.state == "awaiting_input", "the next turn's end")
    last = run.view()["last_seq"]
    types = [event["type"] for event in run.events(lambda event: event["seq"] == last)]
    assert types.count("turn_completed") == 2
    assert "stop_requested" not in types
    five_checks(run, models, key)


def test_a_batch_run_ends_at_its_deadline(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key, interactive=False, deadline_ms=DEADLINE_MS)
    assert run.wait_parked() == "cancelled"
    events = run.events()
    assert [(event["type"], event["cause"]) for event in events[-2:]] == [
        ("turn_cancelled", "deadline"), ("run_cancelled", "deadline"),
    ]  # fmt: skip
    assert [event["type"] for event in events].count("stop_requested") == 1
    five_checks(run, models, key, is_batch=True)


def test_the_late_deadline_of_a_stopped_batch_turn_does_not_hit_the_turn_that_goes_on(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("engine.before_stop") as late:
        run = start_silent(local.api(), models, key, interactive=False, deadline_ms=3000)  # the next turn has it, too
        late.wait_reached()
        run.cancel(continue_with=script("trickle", tokens=3, interval_ms=5, key=key))
        run.wait_event("turn_cancelled", turn_id=run.first_turn, cause="user")
    assert run.wait_parked() == "completed"
    five_checks(run, models, key, is_batch=True)


@pytest.mark.parametrize("is_user_recorded_first", [True, False])
def test_a_users_stop_that_joins_a_deadline_does_not_read_as_the_users(
    local: LocalServer, models: ModelServer, key: str, is_user_recorded_first: bool
) -> None:
    with gate("turn.before_finish") as unwinding, gate("engine.before_stop_is_recorded") as recording:
        run = start_silent(local.api(), models, key, deadline_ms=DEADLINE_MS)
        recording.wait_reached()
        unwinding.wait_reached()
        if not is_user_recorded_first:
            recording.open()
            run.wait_event("stop_requested")
        assert run.cancel()["stopped"] is True
    run.wait_parked()
    events = run.events()
    assert [event["cause"] for event in events if event["type"] == "stop_requested"] == ["deadline"]
    assert run.wait_event("turn_cancelled")["cause"] == "deadline"
    assert run.goals()["answer"]["cause"] == "deadline"
    five_checks(run, models, key)


def test_a_stop_calls_the_deadline_off(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key, deadline_ms=60_000)
    run.cancel(wait_ms=30_000)
    assert run.wait_event("turn_cancelled")["cause"] == "user"
    five_checks(run, models, key)
