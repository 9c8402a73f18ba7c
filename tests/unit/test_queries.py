"""Reading what is committed: owners, pages, the plan brought up to date."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.event import listen

from core.cancellation import Cause, CauseWord
from core.errors import NotFound, ProviderError
from core.events import Event, EventType
from core.plan.goal import Goal
from core.session import queries
from core.session.access import find_run, find_session
from core.session.records import StopOrder, TurnOutcome
from core.session.run_state import OPEN, TERMINAL, RunState
from core.session.stop_moves import request_stop
from core.session.turn import Turn
from core.session.turn_end import end_turn
from core.session.turns import begin_turn
from core.store.tables import IS_LIVE, IS_OPEN, events, turns
from tests.support.api_client import PATIENCE_S
from tests.support.core_kit import ALICE, BOB, Store, Turns, User, open_store, send
from tests.support.core_plans import specs

USER = StopOrder(Cause(CauseWord.USER, "enough"))
TERMINATE = StopOrder(Cause(CauseWord.USER), ends_run=True)


@pytest.fixture
def store(tmp_path: Path, store_url: str | None) -> Iterator[Store]:
    with open_store(tmp_path, store_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("store")) as opened:
        yield opened


def _page(store: Store, caller: User = ALICE, **options: Any) -> dict[str, Any]:
    wanted = {"session_id": None, "state": None, "cursor": None, "limit": 50, **options}
    with store.database.connect() as connection:
        return queries.list_runs(connection, caller, **wanted)


def _ids(page: dict[str, Any]) -> list[str]:
    return [run["run_id"] for run in page["runs"]]


# -- owners --------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", [BOB, User(tenant="other"), User(session_id="s2"), User(sub="")])
def test_what_a_caller_does_not_own_does_not_exist(store: Store, caller: User) -> None:
    start = store.start()
    assert _ids(_page(store, caller)) == []
    with store.database.connect() as connection:
        assert queries.newest_open_run(connection, caller) is None
        for run_id in (start.run_id, "r_x"):
            with pytest.raises(NotFound) as caught:
                find_run(connection, caller, run_id)
            assert caught.value.detail == "there is no such run"
        with pytest.raises(NotFound):
            find_session(connection, caller, "s1")
        assert find_session(connection, ALICE, "s3") is None


def test_a_caller_that_is_tied_to_a_session_sees_that_one_only(store: Store) -> None:
    mine, other = store.start(), store.start(session_id="s2")
    tied = User(session_id="s1")
    assert _ids(_page(store, tied)) == [mine.run_id]
    with store.database.connect() as connection:
        newest = queries.newest_open_run(connection, ALICE)
        assert newest is not None
        assert newest["id"] == other.run_id
        tied_to = queries.newest_open_run(connection, tied)
        assert tied_to is not None
        assert tied_to["id"] == mine.run_id


# -- runs ----------------------------------------------------------------------------------------------


def test_pages_hold_every_run_once_newest_first(store: Store) -> None:
    ids = [store.start(session_id=f"s{n}").run_id for n in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = _page(store, limit=3, cursor=cursor)
        assert len(page["runs"]) <= 3
        seen += _ids(page)
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(ids, reverse=True)
    assert _page(store, limit=7)["next_cursor"] is None


def test_runs_are_filtered_by_session_and_state(store: Store) -> None:
    first, second = store.start(), store.start(session_id="s2")
    store.decide(lambda tx: begin_turn(tx, second.run_id))
    assert _ids(_page(store, session_id="s1")) == [first.run_id]
    assert _ids(_page(store, state="running")) == [second.run_id]
    assert _ids(_page(store, state="failed")) == []


def test_the_newest_open_run_is_that_of_the_newest_turn_not_of_the_newest_run(store: Store) -> None:
    old, new = store.start(), store.start(session_id="s2")
    for start in (old, new):
        store.decide(lambda tx, s=start: begin_turn(tx, s.run_id))  # type: ignore[misc]
    store.decide(lambda tx: end_turn(tx, old.run_id, old.turn_id, TurnOutcome("completed", [])))
    with store.database.connect() as connection:
        newest = queries.newest_open_run(connection, ALICE)
        assert newest is not None
        assert newest["id"] == new.run_id
    store.decide(lambda tx: send(tx, old.run_id, "next"))
    with store.database.connect() as connection:
        newest = queries.newest_open_run(connection, ALICE)
        assert newest is not None
        assert newest["id"] == old.run_id


def test_a_run_that_is_over_is_no_live_run_of_its_session(store: Store) -> None:
    start = store.start(interactive=False)
    with store.database.connect() as connection:
        live = queries.live_run_of_session(connection, "s1")
        assert live is not None
        assert live["id"] == start.run_id
    store.decide(lambda tx: end_turn(tx, start.run_id, start.turn_id, TurnOutcome("completed", [])))
    with store.database.connect() as connection:
        assert queries.live_run_of_session(connection, "s1") is None


# -- the log, receipts, the inbox ----------------------------------------------------------------------


def test_the_log_is_read_in_pages_behind_a_number(store: Store) -> None:
    start = store.start()
    for n in range(10):
        store.writer.emit(Event(start.run_id, EventType.TEXT, {"text": str(n)}, start.turn_id))
    store.flush()
    with store.database.connect() as connection:
        assert queries.last_seq(connection, start.run_id) == 12
        assert queries.last_seq(connection, "r_unknown") == 0
        page = queries.events_after(connection, start.run_id, 3, 4)
        assert [each.seq for each in page] == [4, 5, 6, 7]
        assert queries.events_after(connection, start.run_id, 12, 4) == []


def _work_on_the_open_turn(store: Store, run_id: str, order: StopOrder | None = None) -> None:
    turn_id = store.run(run_id)["turn_id"]
    store.decide(lambda tx: begin_turn(tx, run_id))
    store.writer.emit(Event(run_id, EventType.TEXT, {"text": "said"}, turn_id, "a"))
    store.decide(lambda tx: end_turn(tx, run_id, turn_id, TurnOutcome("completed", [], order)))


def test_the_bounds_of_a_turns_log_leave_nothing_of_it_out(store: Store) -> None:
    run_ids = []
    for _ in range(2):  # two runs of one session
        run_ids.append(run_id := store.start().run_id)
        _work_on_the_open_turn(store, run_id)
        store.decide(lambda tx, r=run_id: send(tx, r, "next"))  # type: ignore[misc]
        _work_on_the_open_turn(store, run_id, TERMINATE)
    run_ids.append(store.start().run_id)  # and one whose turn is open
    with store.database.connect() as connection:
        rows = connection.execute(select(turns).order_by(turns.c.number)).mappings().all()
        assert [row["run_id"] for row in rows] == [run_ids[0]] * 2 + [run_ids[1]] * 2 + [run_ids[2]]
        for row in rows:
            bounded = select(events.c.seq).where(queries.log_of_turn(connection, row))
            whole = select(events.c.seq).where(events.c.run_id == row["run_id"], events.c.turn_id == row["id"])
            found = sorted(connection.execute(bounded).scalars())
            assert found == sorted(connection.execute(whole).scalars())
            assert len(found) >= (3 if row["end_seq"] else 1)


def test_what_a_stop_looks_for_is_found_by_an_index_however_many_runs_are_over(tmp_path: Path) -> None:
    with open_store(tmp_path) as store, store.database.connect() as connection:
        asked: list[tuple[str, Any]] = []
        listen(connection, "before_cursor_execute", lambda _c, _k, statement, values, *_: asked.append((statement, values)))
        for look, index in (
            (lambda: queries.live_run_of_session(connection, "s1"), "ux_runs_live_session"),
            (lambda: queries.newest_open_run(connection, ALICE), "ix_runs_open_owner"),
            (lambda: queries.newest_open_run(connection, User(session_id="s1")), "runs USING INDEX"),
        ):
            look()
            statement, values = asked[-1]
            plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all())
            assert index in plan
            assert "SCAN" not in plan


def test_the_conditions_of_the_indexes_hold_the_states_that_they_are_named_for() -> None:
    assert all((f"'{state}'" in str(IS_OPEN)) == (state in OPEN) for state in RunState)
    assert all((f"'{state}'" in str(IS_LIVE)) == (state in TERMINAL) for state in RunState)


def test_receipts_are_those_of_the_stopped_turns_oldest_first(store: Store) -> None:
    start = store.start()
    items = [[{"kind": "goal", "id": "a"}], []]
    for number in range(2):
        store.decide(lambda tx: begin_turn(tx, start.run_id))
        outcome = TurnOutcome("cancelled", [], USER, items[number])
        turn_id = store.run(start.run_id)["turn_id"]
        store.decide(lambda tx, t=turn_id, o=outcome: end_turn(tx, start.run_id, t, o))  # type: ignore[misc]
        store.decide(lambda tx: send(tx, start.run_id, "next"))
    with store.database.connect() as connection:
        found = queries.receipts(connection, start.run_id)
    assert [each["receipt"] for each in found] == items
    assert [(each["cause"], each["reason"]) for each in found] == [("user", "enough")] * 2


def test_the_inbox_is_in_the_order_of_delivery(store: Store) -> None:
    start = store.start()
    store.decide(lambda tx: begin_turn(tx, start.run_id))
    for text in ("a", "b"):
        store.decide(lambda tx, t=text: send(tx, start.run_id, t))  # type: ignore[misc]
    store.decide(lambda tx: request_stop(tx, start.run_id, start.turn_id, USER))
    with store.database.connect() as connection:
        assert [(each["text"], each["held"]) for each in queries.inbox(connection, start.run_id)] == [
            ("a", True), ("b", True)
        ]  # fmt: skip


# -- the plan -----------------------------------------------------------------------------------------------


def test_before_there_is_a_plan_there_are_no_goals_and_an_unknown_turn_is_not_found(store: Store) -> None:
    start = store.start()
    with store.database.connect() as connection:
        run = store.run(start.run_id)
        view = queries.plan_view(connection, run, None)
        assert (view["turn_id"], view["goals"]) == (start.turn_id, [])
        with pytest.raises(NotFound):
            queries.plan_view(connection, run, "t_unknown")


def _folded(store: Store, turn: Turn) -> list[dict[str, Any]]:
    store.flush()
    with store.database.connect() as connection:
        row = connection.execute(select(turns).where(turns.c.id == turn.start.turn_id)).mappings().one()
        return list(queries.read_plan(connection, row)["goals"])


def _without_times(goals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    left = {"started_at", "ended_at", "result"}
    return [
        {**{name: value for name, value in goal.items() if name not in left}, "goals": _without_times(goal["goals"])}
        | {name: goal[name] is not None for name in ("started_at", "ended_at")}
        for goal in goals
    ]


def _results(goals: list[dict[str, Any]]) -> dict[str, str | None]:
    found = {goal["id"]: goal["result"] for goal in goals}
    for goal in goals:
        found |= _results(goal["goals"])
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=specs(8), data=st.data())
def test_the_plan_in_the_store_is_the_plan_in_memory_while_it_runs_and_afterwards(
    shared: Store, spec: Any, data: st.DataObject
) -> None:
    outcome = data.draw(st.lists(st.sampled_from("cccf"), min_size=8, max_size=8))
    look_at, stop_at = data.draw(st.integers(0, 7)), data.draw(st.none() | st.integers(0, 7))
    looks: list[bool] = []
    lock, count = threading.Lock(), [0]

    def work(turn: Turn, goal: Goal) -> str:
        with lock:
            number, count[0] = count[0], count[0] + 1
        if number == look_at:
            assert turn.plan is not None
            with turn.plan.lock:  # nothing moves meanwhile
                looks.append(_without_times(_folded(shared, turn)) == _without_times(_with_results(turn)))
        if number == stop_at:
            turn.stop(USER)
        assert goal.scope is not None
        goal.scope.checkpoint()
        if outcome[number % 8] == "f":
            raise ProviderError("the model is down")
        return f"did {goal.id}"

    running = Turns(shared, work)
    start = shared.start(session_id=f"p{data.draw(st.uuids())}", plan=spec.model_dump(), interactive=False)
    turn = running.launch(start)
    turn.ended.result(PATIENCE_S)
    assert all(looks)
    assert _without_times(_folded(shared, turn)) == _without_times(_with_results(turn))
    plan = turn.plan
    assert plan is not None
    assert _results(_folded(shared, turn)) == {goal.id: goal.result for goal in plan.walk()}


def _with_results(turn: Turn) -> list[dict[str, Any]]:
    assert turn.plan is not None
    return turn.plan.tree()


def test_a_status_that_was_lost_with_a_full_disk_does_not_make_a_goal_run_for_ever(store: Store) -> None:
    start = store.start()
    new: dict[str, Any] = {"status": "NOT_STARTED", "goals": [], "started_at": None, "ended_at": None}
    tree: list[dict[str, Any]] = [{"id": "a", "title": "a", **new}]
    ended = [tree[0] | {"status": "CANCELLED", "cause": "user", "error": None, "ended_at": "2026-01-01T00:00:00.000Z"}]
    first = Event(start.run_id, EventType.PLAN_UPDATED, {"goals": tree, "note": None}, start.turn_id)
    store.decide(lambda tx: begin_turn(tx, start.run_id))
    store.decide(lambda tx: tx.emit(first, mark="plan_seq"))
    store.writer.emit(Event(start.run_id, EventType.GOAL_STATUS, {"status": "IN_PROGRESS"}, start.turn_id, "a"))
    # Here CANCELLED came, and was not written.
    outcome = TurnOutcome("cancelled", [], USER, [], plan={"goals": ended, "note": None})
    store.decide(lambda tx: end_turn(tx, start.run_id, start.turn_id, outcome))
    with store.database.connect() as connection:
        goal = queries.plan_view(connection, store.run(start.run_id), None)["goals"][0]
    assert (goal["status"], goal["cause"]) == ("CANCELLED", "user")
    assert goal["started_at"] is not None
    assert goal["ended_at"] == "2026-01-01T00:00:00.000Z"
