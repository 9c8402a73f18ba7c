"""Time stamps, and the thread that runs things later."""

import random
import threading
import time

import pytest

from core.cancellation import Cause, CauseWord, Scope
from core.clock import AlarmClock, iso
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.core_kit import wait_set

HOUR = 3600.0


@pytest.fixture
def clock() -> AlarmClock:
    return AlarmClock()


def test_times_are_utc_iso_8601_with_milliseconds() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000Z"
    assert iso(1_700_000_000.1234) == "2023-11-14T22:13:20.123Z"


def test_alarms_run_in_the_order_of_their_times_whatever_the_order_they_were_set_in(clock: AlarmClock) -> None:
    ran: list[int] = []
    done = threading.Event()
    clock.after(0.06, done.set)
    for step in (3, 1, 2):
        clock.after(step * 0.01, lambda step=step: ran.append(step))  # type: ignore[misc]
    wait_set(done)
    assert ran == [1, 2, 3]


def test_alarms_of_one_time_run_in_the_order_in_which_they_were_set(
    clock: AlarmClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    ran: list[int] = []
    done = threading.Event()
    for number in range(20):
        clock.after(0, lambda number=number: ran.append(number))  # type: ignore[misc]
    clock.after(0, done.set)
    wait_set(done)
    assert ran == list(range(20))


def test_an_alarm_is_not_early_and_wakes_the_clock_that_sleeps_for_a_later_one(clock: AlarmClock) -> None:
    clock.after(HOUR, lambda: pytest.fail("an hour has not passed"))
    rang = threading.Event()
    begun = time.monotonic()
    clock.after(0.02, rang.set)
    wait_set(rang)
    assert 0.02 <= time.monotonic() - begun < 10


def test_an_alarm_that_was_called_off_does_not_run(clock: AlarmClock) -> None:
    ran: list[str] = []
    done = threading.Event()
    alarm = clock.after(0.01, lambda: ran.append("called off"))
    alarm.call_off()
    alarm.call_off()
    clock.after(0.02, done.set)
    wait_set(done)
    assert ran == []
    alarm.call_off()


def test_an_alarm_may_be_called_off_after_it_ran(clock: AlarmClock) -> None:
    rang = threading.Event()
    alarm = clock.after(0, rang.set)
    wait_set(rang)
    alarm.call_off()


def test_an_alarm_that_was_called_off_first_in_line_does_not_hold_up_the_next(clock: AlarmClock) -> None:
    first = clock.after(0.01, lambda: pytest.fail("it was called off"))
    rang = threading.Event()
    clock.after(0.03, rang.set)
    first.call_off()
    wait_set(rang)


@pytest.mark.parametrize("kind", ["an error", "a stop", "an exit"])
def test_an_alarm_that_fails_does_not_stop_the_clock(
    clock: AlarmClock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = Scope.root()
    stopped.cancel(Cause(CauseWord.USER))

    def fail() -> None:
        if kind == "a stop":
            stopped.checkpoint()
        raise ValueError if kind == "an error" else SystemExit

    rang = threading.Event()
    clock.after(0, fail)
    clock.after(0, rang.set)
    wait_set(rang)
    assert "an alarm failed" in caplog.text


def test_an_alarm_may_set_and_call_off_others(clock: AlarmClock) -> None:
    rang = threading.Event()
    other = clock.after(0.05, lambda: pytest.fail("it was called off"))

    def chain() -> None:
        other.call_off()
        clock.after(0.06, rang.set)

    clock.after(0, chain)
    wait_set(rang)


def test_a_clock_that_got_no_thread_tries_again_at_the_next_alarm(
    clock: AlarmClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            clock.after(0, lambda: None)
    rang = threading.Event()
    clock.after(0, rang.set)
    wait_set(rang)


def test_every_alarm_of_many_threads_runs_once_unless_it_was_called_off(clock: AlarmClock) -> None:
    ran: list[tuple[int, int]] = []
    kept: set[tuple[int, int]] = set()

    def work(number: int) -> None:
        dice = random.Random(number)
        for step in range(200):
            name = (number, step)
            if dice.random() < 0.3:
                clock.after(HOUR, lambda: pytest.fail("an hour has not passed")).call_off()
            else:
                kept.add(name)
                clock.after(dice.random() / 50, lambda name=name: ran.append(name))  # type: ignore[misc]

    in_threads(8, work)
    done = threading.Event()
    clock.after(0.1, done.set)
    assert done.wait(PATIENCE_S)
    assert sorted(ran) == sorted(kept)
