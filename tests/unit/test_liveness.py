"""The clock of a turn's progress and its watchdog, at a clock that the test moves."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope, Verdict
from core.session import liveness
from core.session.liveness import LATE_S, Activity, Watchdog
from tests.support.causes import USER
from tests.support.core_kit import Started
from tests.support.liveness_kit import HandClock, ParkingLock, Strikes
from tests.support.servers import gate

LIMIT_S = 600.0
IDLE = Cause(CauseWord.LIVENESS, "no progress")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    return HandClock(monkeypatch)


@pytest.fixture
def activity(clock: HandClock) -> Activity:
    return Activity()


@pytest.fixture
def strikes() -> Strikes:
    return Strikes()


@pytest.fixture
def watchdog(activity: Activity, strikes: Strikes) -> Watchdog:
    watchdog = Watchdog(activity, LIMIT_S, strikes)
    watchdog.start()
    return watchdog


def generation_of(activity: Activity) -> int:
    found = activity.look()
    assert found is not None
    return found[1]


def check_strikes_after(seconds: float, clock: HandClock, strikes: Strikes) -> None:
    """Quiet until that time is up, and then a strike."""
    clock.move(seconds - 1)
    assert strikes.is_quiet
    clock.move(1)
    assert strikes.next() is True


# -- when it strikes ---------------------------------------------------------------------------------


def test_a_silent_turn_is_struck_once_when_its_time_is_up_and_not_before(
    clock: HandClock, watchdog: Watchdog, strikes: Strikes
) -> None:
    clock.move(LIMIT_S - 0.001)
    assert strikes.is_quiet
    clock.move(0.001)
    assert strikes.next() is True
    clock.move(10 * LIMIT_S)
    assert strikes.is_quiet
    assert clock.alarms == []


def test_the_time_counts_from_the_newest_progress(
    clock: HandClock, activity: Activity, watchdog: Watchdog, strikes: Strikes
) -> None:
    for _ in range(5):
        clock.move(LIMIT_S - 1)
        activity.touch()
    check_strikes_after(LIMIT_S, clock, strikes)


def test_there_is_one_alarm_set_again_for_the_rest_and_not_at_each_event(
    clock: HandClock, activity: Activity, watchdog: Watchdog
) -> None:
    for _ in range(1000):
        clock.move(0.5)
        activity.touch()
    assert (clock.set_count, clock.alarms) == (1, [100.0])
    clock.move(100)
    assert (clock.set_count, clock.alarms) == (2, [500.0])


def test_it_counts_from_its_start_and_not_from_the_making_of_the_turn(
    clock: HandClock, activity: Activity, strikes: Strikes
) -> None:
    clock.move(10 * LIMIT_S)  # the turn waited for a place among the starts
    Watchdog(activity, LIMIT_S, strikes).start()
    check_strikes_after(LIMIT_S, clock, strikes)


def test_a_turn_that_is_over_has_no_alarm(clock: HandClock, watchdog: Watchdog, strikes: Strikes) -> None:
    watchdog.call_off()
    watchdog.call_off()
    assert clock.alarms == []
    clock.move(10 * LIMIT_S)
    assert strikes.is_quiet


def test_a_strike_that_is_void_after_the_turn_is_over_sets_no_alarm(
    clock: HandClock, activity: Activity, watchdog: Watchdog, strikes: Strikes
) -> None:
    with gate("liveness.before_claim") as striking:
        clock.move(LIMIT_S)
        striking.wait_reached()
        activity.touch()
        watchdog.call_off()
    assert strikes.next() is False
    _wait_no_strike()
    assert clock.alarms == []


def test_without_a_thread_for_the_stop_it_is_tried_again(
    clock: HandClock, watchdog: Watchdog, strikes: Strikes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        clock.move(LIMIT_S)
    assert clock.alarms == [liveness.RETRY_S]
    clock.move(liveness.RETRY_S)
    assert strikes.next() is True


# -- what stops the clock -------------------------------------------------------------------------------


def test_a_wait_that_was_announced_does_not_count_and_shorter_progress_does_not_shorten_it(
    clock: HandClock, activity: Activity, watchdog: Watchdog, strikes: Strikes
) -> None:
    activity.touch(ahead_s=1000.0)
    clock.move(10)
    activity.touch()
    check_strikes_after(990 + LIMIT_S, clock, strikes)


def test_in_a_pause_the_clock_stands_still_without_an_alarm_and_starts_anew_after_it(
    clock: HandClock, activity: Activity, watchdog: Watchdog, strikes: Strikes
) -> None:
    clock.move(LIMIT_S - 1)
    with activity.paused():
        clock.move(100 * LIMIT_S)
        assert strikes.is_quiet
        assert clock.alarms == []
    check_strikes_after(LIMIT_S, clock, strikes)


def test_a_pause_that_ends_before_the_alarm_leaves_one_alarm(
    clock: HandClock, activity: Activity, watchdog: Watchdog
) -> None:
    for _ in range(3):
        with activity.paused():
            clock.move(1)
    assert clock.alarms == [LIMIT_S]


def test_of_several_pauses_the_last_one_counts_however_it_ends(
    clock: HandClock, activity: Activity, watchdog: Watchdog, strikes: Strikes
) -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(activity.paused())
    second.enter_context(activity.paused())
    first.close()
    clock.move(10 * LIMIT_S)
    assert strikes.is_quiet
    with pytest.raises(ValueError, match="no answer"), second:
        raise ValueError("no answer")
    clock.move(LIMIT_S)
    assert strikes.next() is True


def test_a_process_that_stood_still_begins_to_count_anew(
    clock: HandClock, watchdog: Watchdog, strikes: Strikes
) -> None:
    clock.move(LIMIT_S, late_s=3600.0)
    assert strikes.is_quiet
    assert clock.alarms == [LIMIT_S]
    clock.move(LIMIT_S)
    assert strikes.next() is True


def test_an_alarm_that_is_a_little_late_strikes(clock: HandClock, watchdog: Watchdog, strikes: Strikes) -> None:
    clock.move(LIMIT_S, late_s=LATE_S - 0.1)
    assert strikes.next() is True


def test_a_process_that_stood_still_between_the_look_and_the_strike_begins_anew(
    clock: HandClock, watchdog: Watchdog, strikes: Strikes
) -> None:
    with gate("liveness.before_claim") as striking:
        clock.move(LIMIT_S)
        striking.wait_reached()
        clock.move(3600)
    assert strikes.next() is False
    _wait_no_strike()
    assert clock.alarms == [LIMIT_S]
    clock.move(LIMIT_S)
    assert strikes.next() is True


# -- the claim -------------------------------------------------------------------------------------------


def test_progress_between_the_look_and_the_strike_makes_the_claim_void_and_the_watch_goes_on(
    clock: HandClock, activity: Activity, watchdog: Watchdog, strikes: Strikes
) -> None:
    with gate("liveness.before_claim") as striking:
        clock.move(LIMIT_S)
        striking.wait_reached()
        activity.touch()
    assert strikes.next() is False
    _wait_no_strike()
    clock.move(LIMIT_S)
    assert strikes.next() is True


def test_a_pause_between_the_look_and_the_strike_makes_the_claim_void(
    clock: HandClock, activity: Activity, watchdog: Watchdog, strikes: Strikes
) -> None:
    with activity.paused():
        with activity.claim(activity._generation) as holds:
            assert not holds
    clock.move(0.5)
    with gate("liveness.before_claim") as striking:
        clock.move(LIMIT_S)
        striking.wait_reached()
        with activity.paused():
            striking.open()
            assert strikes.next() is False
    _wait_no_strike()
    assert clock.alarms == [LIMIT_S]


def test_a_claim_is_of_one_generation(activity: Activity) -> None:
    generation = generation_of(activity)
    with activity.claim(generation) as holds:
        assert holds
    activity.touch()
    with activity.claim(generation) as holds:
        assert not holds


def test_progress_waits_while_a_claim_is_held(activity: Activity) -> None:
    with ThreadPoolExecutor(1) as threads:
        with activity.claim(generation_of(activity)) as holds:
            progress = threads.submit(activity.touch)
            assert holds
            with pytest.raises(TimeoutError):
                progress.result(0.05)  # it cannot be told otherwise that something waits
        progress.result(5)


# -- the scope's side -----------------------------------------------------------------------------------


def test_a_stop_whose_claim_is_void_changes_nothing(activity: Activity, turn: Scope) -> None:
    ran: list[int] = []
    turn.add_abort(lambda: ran.append(1))
    claim = activity.claim(generation_of(activity))
    activity.touch()
    assert turn.cancel(IDLE, lambda: ran.append(2), claim) is Verdict.VOID
    assert (turn.is_stopped, turn.cause, ran) == (False, None, [])
    turn.checkpoint()
    assert turn.cancel(USER) is Verdict.FIRST


def test_a_stop_whose_claim_holds_joins_and_comes_too_late_like_any_other(activity: Activity, turn: Scope) -> None:
    other = turn.open(Level.GOAL, "g")
    generation = generation_of(activity)
    assert turn.cancel(IDLE, claim=activity.claim(generation)) is Verdict.FIRST
    assert turn.cancel(USER, claim=activity.claim(generation)) is Verdict.JOINED
    other.finish()
    assert other.cancel(USER, claim=activity.claim(generation)) is Verdict.OVER
    assert turn.cause is IDLE


def test_the_claim_is_let_go_before_the_aborts_run(activity: Activity, turn: Scope) -> None:
    steps: list[str] = []

    def abort() -> None:  # as a stop does, which takes locks under which others make progress
        steps.append("aborting")
        Started(activity.touch).result()
        steps.append("touched")

    turn.add_abort(abort)
    assert turn.cancel(IDLE, claim=activity.claim(generation_of(activity))) is Verdict.FIRST
    assert steps == ["aborting", "touched"]


@pytest.mark.parametrize("where", ["inside", "after"])
def test_progress_that_meets_the_claim_or_comes_right_behind_it_comes_after_the_stop(
    activity: Activity, turn: Scope, where: str
) -> None:
    found = activity.look()
    assert found is not None
    lock = ParkingLock(activity, where)
    stopping = threading.Thread(
        target=lambda: turn.cancel(IDLE, claim=activity.claim(found[1])), name="liveness", daemon=True
    )
    stopping.start()
    lock.parked.wait_reached()

    def progress() -> bool:
        activity.touch()
        return turn.is_stopped

    making = Started(progress)
    if where == "after":
        assert making.result() is True
    lock.parked.open()
    assert making.result() is True
    stopping.join(5)
    with pytest.raises(Cancelled):
        turn.checkpoint()


def _wait_no_strike() -> None:
    for thread in threading.enumerate():
        if thread.name == "liveness":
            thread.join(5)
            assert not thread.is_alive()
