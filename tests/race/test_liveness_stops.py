"""The watchdog against other stops, and against the end of the turn; each order forced."""

import threading
from contextlib import nullcontext

import pytest

from core.cancellation import Cause, CauseWord, Verdict
from core.clock import alarm_clock
from core.session.liveness import Watchdog
from core.session.records import StopOrder
from tests.support.api_client import PATIENCE_S
from tests.support.core_kit import Started
from tests.support.five_checks import five_checks
from tests.support.liveness_kit import IDLE, LIMIT_MS, ParkingLock, noting_strikes
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, start_silent, stop_causes
from tests.support.race_kit import turn_of
from tests.support.servers import LocalServer, gate, wait_until


def test_a_users_stop_before_the_claim_is_the_stop(local: LocalServer, models: ModelServer, key: str) -> None:
    with (
        noting_strikes(local) as verdicts,
        gate("liveness.before_claim") as striking,
        gate("turn.before_finish") as ending,
    ):
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        striking.wait_reached()
        assert run.cancel()["stopped"] is True
        ending.wait_reached()
        striking.open()
        wait_until(lambda: verdicts, "the verdict")
        ending.open()
        run.wait_parked()
    assert (stop_causes(run), run.wait_event("turn_cancelled")["cause"]) == (["user"], "user")
    five_checks(run, models, key)


def test_a_users_stop_that_joins_the_watchdogs_does_not_read_as_the_users(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("turn.scope_closed") as closed:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        closed.wait_reached()
        assert run.cancel(reason="me too")["stopped"] is True
        closed.open()
        run.wait_parked()
    end = run.wait_event("turn_cancelled")
    assert (stop_causes(run), end["cause"], end["reason"]) == (["liveness"], "liveness", IDLE.reason)
    assert run.goals()["answer"]["cause"] == "liveness"
    five_checks(run, models, key)


def test_a_strike_that_waits_for_its_claim_does_not_end_a_batch_run_that_is_told_how_to_go_on(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key, interactive=False, idle_limit_ms=LIMIT_MS)
    lock = ParkingLock(turn_of(local, run).activity, "before")
    lock.parked.wait_reached()  # its order is made, and would end the run
    assert run.cancel(continue_with=script("strict", key=key))["stopped"] is True
    run.wait_event("turn_completed")
    lock.parked.open()
    assert run.wait_parked() == "completed"
    assert stop_causes(run) == ["user"]
    five_checks(run, models, key, is_batch=True)


@pytest.mark.parametrize("point", ["turn.before_finish", "engine.before_final_write"])
def test_a_strike_on_a_turn_that_is_being_stopped_joins_nothing(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    with gate(point) as ending:
        run = start_silent(local.api(), models, key, interactive=False, idle_limit_ms=0)
        turn = turn_of(local, run)
        assert run.cancel(continue_with=script("strict", key=key))["stopped"] is True
        ending.wait_reached()
        assert local.main.engine.stopping.stop_if(turn, StopOrder(IDLE, ends_run=True), nullcontext(True))
        order = turn.stopping.order_in_force()
        assert order is not None
        assert not order.ends_run
        assert not turn.run_scope.is_stopped
    assert run.wait_parked() == "completed"
    assert stop_causes(run) == ["user"]
    five_checks(run, models, key, is_batch=True)


def test_a_watchdog_that_comes_too_late_does_not_hit_the_next_turn(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with (
        noting_strikes(local) as verdicts,
        gate("chatbot.plan_has_run") as at_end,
        gate("liveness.before_claim") as late,
    ):
        run = local.api().start(script("strict", key=key), idle_limit_ms=LIMIT_MS)
        at_end.wait_reached()
        late.wait_reached()
        run.say(script("trickle", tokens=3, interval_ms=5, key=key))
        at_end.open()
        run.wait_event("turn_completed", turn_id=run.first_turn)
        late.open()
        wait_until(lambda: verdicts, "the verdict")
    wait_until(lambda: run.state == "awaiting_input", "the next turn's end")
    assert [event["type"] for event in all_events(run)].count("turn_completed") == 2
    assert stop_causes(run) == []
    five_checks(run, models, key)


def test_a_run_that_is_parked_has_no_watchdog(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key, idle_limit_ms=60_000)
    assert len(_watching()) == 1
    run.cancel(wait_ms=30_000)
    assert _watching() == []
    run.say(script("strict", key=key))
    run.wait_event("turn_completed")
    assert _watching() == []
    five_checks(run, models, key)


def test_without_a_limit_nothing_watches(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key, idle_limit_ms=0)
    assert _watching() == []
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)


def test_the_servers_limit_is_ten_minutes(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    (watchdog,) = _watching()
    assert watchdog._limit_s == 600
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)


def _watching() -> list[Watchdog]:
    """Whose alarm is set in this process."""
    with alarm_clock._changed:
        owners = [getattr(alarm.action, "__self__", None) for _, _, alarm in alarm_clock._due]
    return [owner for owner in owners if isinstance(owner, Watchdog)]


def test_ten_stops_and_a_strike_at_once_are_one_stop(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key, idle_limit_ms=60_000)
    turn = turn_of(local, run)
    generation = turn.activity._generation
    spots = threading.Barrier(11)

    def strike() -> Verdict:
        spots.wait(PATIENCE_S)
        return turn.stop(StopOrder(IDLE, ends_run=True), turn.activity.claim(generation))

    def press() -> Verdict:
        spots.wait(PATIENCE_S)
        return turn.stop(StopOrder(Cause(CauseWord.USER)))

    stops = [Started(strike), *(Started(press) for _ in range(10))]
    verdicts = [stop.result() for stop in stops]
    assert verdicts.count(Verdict.FIRST) == 1
    state = run.wait_parked()
    is_idle = verdicts[0] is Verdict.FIRST
    assert (state, stop_causes(run)) == (("cancelled", ["liveness"]) if is_idle else ("awaiting_input", ["user"]))
    five_checks(run, models, key)
