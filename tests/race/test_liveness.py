"""The watchdog against progress, against other stops, and against the end of the turn; each order forced."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Cause, CauseWord, Level, Scope, Verdict
from core.clock import alarm_clock
from core.events import EventType
from core.extensions.skillsets.ChatBot import ChatBot2
from core.session.liveness import Activity, Watchdog
from core.session.records import StopOrder
from core.session.turn import Turn
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import PATIENCE_S, Run
from tests.support.core_kit import Started
from tests.support.five_checks import five_checks
from tests.support.liveness_kit import ParkingLock
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, start_silent
from tests.support.python_tools import PythonTool, call_line, give_tool
from tests.support.race_kit import Switch
from tests.support.servers import LocalServer, gate, wait_until

#: Of each turn, so also of the message with which the five checks end: that must never be silent for so long.
LIMIT_MS = 1500
IDLE = Cause(CauseWord.LIVENESS, f"no progress for {LIMIT_MS} ms")


def _turn(local: LocalServer, run: Run) -> Turn:
    turn = local.main.engine.live_turn(run.id)
    assert turn is not None
    return turn


def _causes(run: Run) -> list[str]:
    return [event["cause"] for event in all_events(run) if event["type"] == "stop_requested"]


@contextmanager
def _verdicts(local: LocalServer) -> Iterator[list[bool]]:
    """What became of each strike: False for a void one."""
    stopping, seen = local.main.engine.stopping, []
    stop_if = stopping.stop_if

    def noting(*asked: Any) -> bool:
        seen.append(stop_if(*asked))
        return seen[-1]

    stopping.stop_if = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        stopping.stop_if = stop_if  # type: ignore[method-assign]


# -- progress ------------------------------------------------------------------------------------------


def test_progress_between_the_look_and_the_strike_makes_it_void_and_the_time_begins_anew(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with _verdicts(local) as verdicts, gate("liveness.before_claim") as striking:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        striking.wait_reached()
        progress = time.monotonic()
        _turn(local, run).emit(EventType.REASONING, {"text": "still there"})
        striking.open()
        run.wait_event("stop_requested")
        assert time.monotonic() - progress >= LIMIT_MS / 1000
    assert run.wait_parked() == "awaiting_input"
    assert verdicts == [False, True]
    assert [event["type"] for event in all_events(run) if event["type"] in ("reasoning", "stop_requested")] == [
        "reasoning", "stop_requested",
    ]  # fmt: skip
    five_checks(run, models, key)


def test_progress_just_before_the_claim_is_taken_makes_it_void(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with _verdicts(local) as verdicts:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        turn = _turn(local, run)
        lock = ParkingLock(turn.activity, "before")
        lock.parked.wait_reached()  # on the strike's thread: everything is decided but the claim
        turn.emit(EventType.REASONING, {"text": "still there"})
        lock.parked.open()
        wait_until(lambda: verdicts, "the verdict")
        assert verdicts == [False]
        assert not turn.scope.is_stopped
        assert (turn.stopping._claimed, turn.stopping.order_in_force()) == ([], None)
        run.wait_parked()
    assert _causes(run) == ["liveness"]
    five_checks(run, models, key)


@pytest.mark.parametrize("where", ["inside", "after"])
def test_progress_while_the_claim_is_held_or_right_after_comes_after_the_stop_and_undoes_nothing(
    local: LocalServer, models: ModelServer, key: str, where: str
) -> None:
    with _verdicts(local) as verdicts:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        turn = _turn(local, run)
        lock = ParkingLock(turn.activity, where)
        lock.parked.wait_reached()

        def progress() -> bool:
            turn.emit(EventType.REASONING, {"text": "too late"})
            return turn.scope.is_stopped

        making = Started(progress)
        if where == "after":
            assert making.result() is True
        lock.parked.open()
        assert making.result() is True
        run.wait_parked()
    assert verdicts == [True]
    assert run.wait_event("turn_cancelled")["cause"] == "liveness"
    five_checks(run, models, key)


def test_progress_during_the_aborts_of_the_stop_neither_undoes_nor_blocks_it(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
    turn, aborting = _turn(local, run), Switch()
    turn.scope.add_abort(aborting.hold)
    aborting.wait_reached()
    turn.emit(EventType.REASONING, {"text": "while it is being stopped"})
    turn.publish_plan()  # under the plan's lock, which a stop takes, too
    assert turn.scope.is_stopped
    aborting.open()
    assert run.wait_parked() == "awaiting_input"
    assert run.wait_event("turn_cancelled")["cause"] == "liveness"
    assert _causes(run) == ["liveness"]
    five_checks(run, models, key)


def test_a_tool_that_ends_at_the_last_moment_lets_the_turn_go_on(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PythonTool, "ends_within_s", PATIENCE_S)
    working = Switch()

    def work(_: ToolRun) -> ToolResult:
        working.hold()
        return ToolResult("done")

    give_tool(local, "work", work)
    with _verdicts(local) as verdicts, gate("liveness.before_claim") as striking:
        run = local.api().start(call_line(key, "work"), idle_limit_ms=LIMIT_MS)
        working.wait_reached()
        striking.wait_reached()
        working.open()
        run.wait_event("tool_result")
        striking.open()
        assert run.wait_parked() == "awaiting_input"
        wait_until(lambda: verdicts, "the verdict")
    run.wait_event("turn_completed")
    assert _causes(run) == []
    five_checks(run, models, key)


def test_an_open_question_stops_the_clock(local: LocalServer, models: ModelServer, key: str) -> None:
    answered = threading.Event()

    def ask(_: ToolRun) -> ToolResult:
        (turn,) = local.main.engine.live_turns()
        with turn.activity.paused():
            assert not answered.wait(2 * LIMIT_MS / 1000)  # silence is what is tested
        return ToolResult("an answer")

    give_tool(local, "ask", ask)
    run = local.api().start(call_line(key, "ask"), idle_limit_ms=LIMIT_MS)
    run.wait_parked()
    run.wait_event("turn_completed")
    five_checks(run, models, key)


def test_a_title_in_the_making_is_no_silence_and_the_answer_stays_complete(
    models: ModelServer, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChatBot2, "TITLE_S", 2 * LIMIT_MS / 1000)
    with LocalServer(tmp_path, models.url, auto_title=True) as local, _verdicts(local) as verdicts:
        line = script("silent", key=key)
        run = local.api().start(line, plan={"goals": [goal("a", script("strict", key=key))]}, idle_limit_ms=LIMIT_MS)
        assert run.wait_parked() == "awaiting_input"
        run.wait_event("turn_completed")
        assert (_causes(run), verdicts) == ([], [])
        models.wait_calls(2, key=key)


# -- other stops, and the end ------------------------------------------------------------------------------


def test_a_users_stop_before_the_claim_is_the_stop(local: LocalServer, models: ModelServer, key: str) -> None:
    with _verdicts(local) as verdicts, gate("liveness.before_claim") as striking, gate("turn.before_finish") as ending:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        striking.wait_reached()
        assert run.cancel()["stopped"] is True
        ending.wait_reached()
        striking.open()
        wait_until(lambda: verdicts, "the verdict")
        ending.open()
        run.wait_parked()
    assert (_causes(run), run.wait_event("turn_cancelled")["cause"]) == (["user"], "user")
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
    assert (_causes(run), end["cause"], end["reason"]) == (["liveness"], "liveness", IDLE.reason)
    assert run.goals()["answer"]["cause"] == "liveness"
    five_checks(run, models, key)


def test_a_strike_that_waits_for_its_claim_does_not_end_a_batch_run_that_is_told_how_to_go_on(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key, interactive=False, idle_limit_ms=LIMIT_MS)
    lock = ParkingLock(_turn(local, run).activity, "before")
    lock.parked.wait_reached()  # its order is made, and would end the run
    assert run.cancel(continue_with=script("strict", key=key))["stopped"] is True
    run.wait_event("turn_completed")
    lock.parked.open()
    assert run.wait_parked() == "completed"
    assert _causes(run) == ["user"]
    five_checks(run, models, key, is_batch=True)


@pytest.mark.parametrize("point", ["turn.before_finish", "engine.before_final_write"])
def test_a_strike_on_a_turn_that_is_being_stopped_joins_nothing(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    with gate(point) as ending:
        run = start_silent(local.api(), models, key, interactive=False, idle_limit_ms=0)
        turn = _turn(local, run)
        assert run.cancel(continue_with=script("strict", key=key))["stopped"] is True
        ending.wait_reached()
        assert local.main.engine.stopping.stop_if(turn, StopOrder(IDLE, ends_run=True), nullcontext(True))
        order = turn.stopping.order_in_force()
        assert order is not None
        assert not order.ends_run
        assert not turn.run_scope.is_stopped
    assert run.wait_parked() == "completed"
    assert _causes(run) == ["user"]
    five_checks(run, models, key, is_batch=True)


def test_a_watchdog_that_comes_too_late_does_not_hit_the_next_turn(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with _verdicts(local) as verdicts, gate("chatbot.plan_has_run") as at_end, gate("liveness.before_claim") as late:
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
    assert _causes(run) == []
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


# -- at full speed -----------------------------------------------------------------------------------------


class _Rounds:
    """A claimed stop and a piece of progress at the same moment, again and again."""

    def __init__(self, count: int) -> None:
        self.turns = [(Scope.root().open(Level.TURN, str(number)), Activity()) for number in range(count)]
        self.generations = [activity._generation for _, activity in self.turns]
        self._spots = threading.Barrier(2)
        self._dice = random.Random(5)

    def _meet(self, number: int) -> None:
        self._spots.wait(PATIENCE_S)
        for _ in range(self._dice.randrange(40)):
            pass  # some nanoseconds more or less

    def strike(self) -> list[Verdict]:
        """What became of each stop."""
        verdicts = []
        for number, (scope, activity) in enumerate(self.turns):
            self._meet(number)
            verdicts.append(scope.cancel(IDLE, claim=activity.claim(self.generations[number])))
        return verdicts

    def touch(self) -> list[bool]:
        """Whether each turn was seen to be stopped, just after the progress."""
        seen = []
        for number, (scope, activity) in enumerate(self.turns):
            self._meet(number)
            activity.touch()
            seen.append(scope.is_stopped)
        return seen


@pytest.fixture
def _often_switched() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_often_switched")
def test_of_a_claimed_stop_and_progress_at_once_exactly_one_comes_first() -> None:
    rounds = _Rounds(500)
    striking, touching = Started(rounds.strike), Started(rounds.touch)
    outcomes = list(zip(striking.result(), touching.result(), strict=True))
    # Never a stop after progress that saw none, and never a void stop that stopped something all the same.
    assert set(outcomes) <= {(Verdict.FIRST, True), (Verdict.VOID, False)}
    assert [scope.is_stopped for scope, _ in rounds.turns] == [verdict is Verdict.FIRST for verdict, _ in outcomes]


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_a_watchdog_strikes_every_silent_turn_and_none_that_has_just_made_progress(count: int) -> None:
    dice, limit_s = random.Random(6), 0.01
    for number in range(count):
        scope, activity = Scope.root().open(Level.TURN, str(number)), Activity()
        closed_at: list[float] = []
        closed = threading.Event()
        scope.add_abort(lambda at=closed_at: at.append(time.monotonic()))  # type: ignore[misc]
        scope.add_abort(closed.set)

        def stop(claim: Any, scope: Scope = scope) -> bool:
            return scope.cancel(IDLE, claim=claim) is not Verdict.VOID

        watchdog = Watchdog(activity, limit_s, stop)
        watchdog.start()
        heard: list[float] = []
        for _ in range(3):
            threading.Event().wait(limit_s * dice.uniform(0.9, 1.05))  # around the limit, so that both happen
            at = time.monotonic()
            activity.touch()
            if not scope.is_stopped:
                heard.append(at)
        assert closed.wait(PATIENCE_S), "a silent turn was forgotten"
        watchdog.call_off()
        assert all(closed_at[0] >= at + limit_s for at in heard), "stopped in spite of progress"


def test_ten_stops_and_a_strike_at_once_are_one_stop(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key, idle_limit_ms=60_000)
    turn = _turn(local, run)
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
    assert (state, _causes(run)) == (("cancelled", ["liveness"]) if is_idle else ("awaiting_input", ["user"]))
    five_checks(run, models, key)
