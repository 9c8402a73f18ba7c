"""The watchdog against progress: each order forced, and both at full speed."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Level, Scope, Verdict
from core.events import EventType
from core.extensions.skillsets.ChatBot import ChatBot2
from core.session.liveness import Activity, Watchdog
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import PATIENCE_S
from tests.support.core_kit import Started
from tests.support.five_checks import five_checks
from tests.support.liveness_kit import IDLE, LIMIT_MS, ParkingLock, noting_strikes
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, start_silent, stop_causes
from tests.support.python_tools import PythonTool, call_line, give_tool
from tests.support.race_kit import Switch, turn_of
from tests.support.servers import LocalServer, gate, wait_until

# -- progress ------------------------------------------------------------------------------------------


def test_progress_between_the_look_and_the_strike_makes_it_void_and_the_time_begins_anew(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with noting_strikes(local) as verdicts, gate("liveness.before_claim") as striking:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        striking.wait_reached()
        progress = time.monotonic()
        turn_of(local, run).emit(EventType.REASONING, {"text": "still there"})
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
    with noting_strikes(local) as verdicts:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        turn = turn_of(local, run)
        lock = ParkingLock(turn.activity, "before")
        lock.parked.wait_reached()  # on the strike's thread: everything is decided but the claim
        turn.emit(EventType.REASONING, {"text": "still there"})
        lock.parked.open()
        wait_until(lambda: verdicts, "the verdict")
        assert verdicts == [False]
        assert not turn.scope.is_stopped
        assert (turn.stopping._claimed, turn.stopping.order_in_force()) == ([], None)
        run.wait_parked()
    assert stop_causes(run) == ["liveness"]
    five_checks(run, models, key)


@pytest.mark.parametrize("where", ["inside", "after"])
def test_progress_while_the_claim_is_held_or_right_after_comes_after_the_stop_and_undoes_nothing(
    local: LocalServer, models: ModelServer, key: str, where: str
) -> None:
    with noting_strikes(local) as verdicts:
        run = start_silent(local.api(), models, key, idle_limit_ms=LIMIT_MS)
        turn = turn_of(local, run)
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
    turn, aborting = turn_of(local, run), Switch()
    turn.scope.add_abort(aborting.hold)
    aborting.wait_reached()
    turn.emit(EventType.REASONING, {"text": "while it is being stopped"})
    turn.publish_plan()  # under the plan's lock, which a stop takes, too
    assert turn.scope.is_stopped
    aborting.open()
    assert run.wait_parked() == "awaiting_input"
    assert run.wait_event("turn_cancelled")["cause"] == "liveness"
    assert stop_causes(run) == ["liveness"]
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
    with noting_strikes(local) as verdicts, gate("liveness.before_claim") as striking:
        run = local.api().start(call_line(key, "work"), idle_limit_ms=LIMIT_MS)
        working.wait_reached()
        striking.wait_reached()
        working.open()
        run.wait_event("tool_result")
        striking.open()
        assert run.wait_parked() == "awaiting_input"
        wait_until(lambda: verdicts, "the verdict")
    run.wait_event("turn_completed")
    assert stop_causes(run) == []
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
    with LocalServer(tmp_path, models.url, auto_title=True) as local, noting_strikes(local) as verdicts:
        line = script("silent", key=key)
        run = local.api().start(line, plan={"goals": [goal("a", script("strict", key=key))]}, idle_limit_ms=LIMIT_MS)
        assert run.wait_parked() == "awaiting_input"
        run.wait_event("turn_completed")
        assert (stop_causes(run), verdicts) == ([], [])
        models.wait_calls(2, key=key)


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
