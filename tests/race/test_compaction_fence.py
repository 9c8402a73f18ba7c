"""A stop against the commit of a compaction, in every order: it is void, or it is whole and came first."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from sqlalchemy import select

from core import gates
from core.cancellation import Cause, CauseWord
from core.session.records import StopOrder
from core.store.tables import compactions, events
from tests.support.api_client import PATIENCE_S, Api, Run
from tests.support.compacting import SUMMARY, ask_compact, ask_next, compactions_of, events_of, start_talk, talk
from tests.support.core_kit import User
from tests.support.five_checks import TURN_ENDS, five_checks
from tests.support.going_back import NOTE, of_type, system_of
from tests.support.model_server import ModelServer, script
from tests.support.race_kit import Later, break_store, turn_of
from tests.support.servers import LocalServer, gate, wait_until

#: The events whose order is the point.
KINDS = ("compaction", "stop_requested", *TURN_ENDS)

both_stops = pytest.mark.parametrize("how", ["cancel", "terminate"])


def _stop(run: Run, how: str) -> dict[str, Any]:
    """Over a connection of its own: the test uses the other one meanwhile."""
    answer: dict[str, Any] = Api(run.api.url, run.api.token).post(f"{run.path}/{how}")
    return answer


def _types(run: Run, turn_id: str) -> list[str]:
    return [event["type"] for event in events_of(run, turn_id) if event["type"] in KINDS]


def _check_next(run: Run, models: ModelServer, key: str, is_compacted: bool) -> None:
    """The history is whole or compacted, in this run or, if it is over, in the session's next one; and works."""
    if run.state == "awaiting_input":
        request = ask_next(run, models, key)
    else:
        run = run.api.start(script("strict", key=key), session_id=run.session_id)
        run.wait_parked()
        request = models.calls(key=key)[-1]
    assert (SUMMARY in system_of(request)) is is_compacted
    assert ("question 2" not in str(request.messages)) is is_compacted
    assert NOTE not in system_of(request)
    five_checks(run, models, key)


@both_stops
def test_a_stop_before_the_commit_makes_it_void(local: LocalServer, models: ModelServer, key: str, how: str) -> None:
    run = start_talk(local.api(), key)
    with gate("compaction.before_commit") as before:
        turn_id = ask_compact(run)["turn_id"]
        before.wait_reached()
        answer = _stop(run, how)
        assert (answer["stopped"], answer["state"]) == (True, "stopping")
    run.wait_parked()
    assert _types(run, turn_id) == ["stop_requested", "turn_cancelled"]
    assert compactions_of(run) == []
    _check_next(run, models, key, is_compacted=False)


@both_stops
def test_a_stop_while_the_commit_is_being_written_waits_for_it(
    local: LocalServer, models: ModelServer, key: str, how: str
) -> None:
    run = start_talk(local.api(), key)
    with gate("compaction.committing") as committing:
        turn_id = ask_compact(run)["turn_id"]
        committing.wait_reached()
        turn = turn_of(local, run)
        stop = Later(lambda: _stop(run, how))
        wait_until(lambda: turn.scope.is_stopped, "the stop")
        assert not stop.is_done  # what is not durable is not answered
        committing.open()
        assert stop.result()["stopped"] is True
    run.wait_parked()
    assert _types(run, turn_id) == ["compaction", "stop_requested", "turn_cancelled"]
    _check_next(run, models, key, is_compacted=True)


@both_stops
def test_a_stop_after_the_commit_finds_a_call_that_had_finished(
    local: LocalServer, models: ModelServer, key: str, how: str
) -> None:
    run = start_talk(local.api(), key)
    with gate("compaction.after_commit") as after:
        turn_id = ask_compact(run)["turn_id"]
        after.wait_reached()
        assert _stop(run, how)["stopped"] is True
    run.wait_parked()
    assert _types(run, turn_id) == ["compaction", "stop_requested", "turn_cancelled"]
    (end,) = of_type(run, "turn_cancelled")
    assert [item for item in end["receipt"] if item["kind"] == "model_call"] == []
    _check_next(run, models, key, is_compacted=True)


def test_a_stop_after_the_commit_inside_a_users_turn_stops_that_turn_and_the_compaction_holds(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    local.main.engine._skillset._compact_at_tokens = 1  # type: ignore[attr-defined]
    with gate("compaction.after_commit") as after:
        run = local.api().start(script("strict", key=key), messages=talk(key, 5))
        after.wait_reached()
        assert _stop(run, "cancel")["stopped"] is True
    run.wait_parked()
    assert _types(run, run.first_turn) == ["compaction", "stop_requested", "turn_cancelled"]
    assert len(models.calls(key=key)) == 1, "the turn had not asked anything else"
    request = ask_next(run, models, key)
    assert SUMMARY in system_of(request)
    assert NOTE in system_of(request), "that answer was stopped"
    five_checks(run, models, key)


def test_a_commit_that_the_store_refuses_fails_the_turn_and_changes_nothing(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_talk(local.api(), key)
    faults = [True]
    with gate("compaction.before_commit") as before:
        turn_id = ask_compact(run)["turn_id"]
        before.wait_reached()
        break_store(monkeypatch, local.main.writer, lambda: bool(faults) and faults.pop())
        before.open()
        run.wait_event("turn_failed", turn_id=turn_id)
    run.wait_parked()
    assert faults == []
    assert compactions_of(run) == []
    _check_next(run, models, key, is_compacted=False)


def test_the_protection_window_is_open_from_the_request_for_the_summary_until_the_commit(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_talk(local.api(), key)
    with gate("agent.before_request") as asking, gate("compaction.committing") as committing:
        ask_compact(run)
        asking.wait_reached()
        turn = turn_of(local, run)
        assert turn.is_protected
        asking.open()
        committing.wait_reached()
        assert turn.is_protected
    run.wait_parked()
    assert not turn.is_protected
    _check_next(run, models, key, is_compacted=True)


# -- a race ----------------------------------------------------------------------------------


class _Race:
    """Compactions of one session, each with a stop that is let go together with its commit."""

    def __init__(self, local: LocalServer, models: ModelServer, key: str) -> None:
        self.main = local.main
        self.run = start_talk(local.api(), key)
        self.user = User()
        self.random = random.Random(5)

    def play(self) -> tuple[bool, bool]:
        """One round: whether the compaction is in force, and whether a turn was stopped."""
        together = threading.Barrier(2)

        def meet(wait_s: float) -> None:
            together.wait(PATIENCE_S)
            time.sleep(wait_s)  # the race itself: who comes first is not forced here

        waits = [self.random.choice([0.0, 0.0, self.random.random() * 0.003]) for _ in range(2)]
        gates.installed["compaction.before_commit"] = lambda: meet(waits[0])
        turn_id = self.main.compactions.start(self.user, self.run.id, None)["turn_id"]
        turn = self.main.engine.live_turn(self.run.id)
        assert turn is not None
        meet(waits[1])
        order = StopOrder(Cause(CauseWord.USER))
        stopped = self.main.cancel_run(self.user, self.run.id, order, turn_id, 0).stopped
        turn.ended.result(PATIENCE_S)
        gates.installed.clear()
        return self._check(turn_id, stopped)

    def _check(self, turn_id: str, stopped: bool) -> tuple[bool, bool]:
        with self.main.reading() as connection:
            rows = connection.execute(select(events.c.type).where(events.c.turn_id == turn_id).order_by(events.c.seq))
            types = [kind for kind in rows.scalars() if kind in KINDS]
            query = select(compactions.c.id).where(
                compactions.c.session_id == self.run.session_id, compactions.c.undone_at.is_(None)
            )
            in_force = list(connection.execute(query).scalars())
        expected = ["compaction"] if in_force else []
        expected += ["stop_requested", "turn_cancelled"] if stopped else ["turn_completed"]
        assert types == expected
        assert in_force or stopped
        assert len(in_force) <= 1
        if in_force:
            assert self.main.compactions.undo(self.user, self.run.id, None)["undone"] is True
        return bool(in_force), stopped


def test_a_stop_that_races_the_commit_leaves_it_void_or_whole(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    race = _Race(local, models, key)
    for _ in range(60):
        race.play()
    five_checks(race.run, models, key)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundreds_of_stops_that_race_the_commit_leave_it_void_or_whole(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    race = _Race(local, models, key)
    ends = {race.play() for _ in range(500)}
    assert {(True, True), (False, True)} <= ends, "both orders were met"
    five_checks(race.run, models, key)
