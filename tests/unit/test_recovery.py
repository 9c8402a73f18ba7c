"""What a crash left is settled as the turn itself would have settled it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from core.cancellation import Cause, CauseWord
from core.engine.recovery import settle_lost_turns
from core.errors import ProviderError, StoreError
from core.events import TURN_ENDS, Event, EventType
from core.plan.goal import Goal
from core.session import queries
from core.session.arrival import Arrival
from core.session.earlier import read_earlier
from core.session.going_back import resume
from core.session.portable import read_lines
from core.session.records import StopOrder, TurnStart
from core.session.said import turn_messages
from core.session.said_log import read_said
from core.session.stop_moves import request_stop
from core.session.transcript import read_transcript
from core.session.turn import Turn
from core.session.turns import begin_turn
from core.store.tables import events, runs, turns
from tests.support.api_client import PATIENCE_S
from tests.support.core_kit import ALICE, Store, Turns, open_store, send, wait_set
from tests.support.core_plans import specs
from tests.support.portable import session_line, turn_line

STOP = StopOrder(Cause(CauseWord.USER, "enough"))
TERMINATE = StopOrder(Cause(CauseWord.USER), ends_run=True)
PLAN = {"goals": [{"id": "a", "prompt": "p"}, {"id": "i", "goals": [{"id": "b", "prompt": "p", "depends_on": ["a"]}]}]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "one") as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("store")) as opened:
        yield opened


def _types(store: Store, run_id: str) -> list[str]:
    return [each.type for each in store.events(run_id)]


def _transcript(store: Store, session_id: str = "s1") -> list[dict[str, Any]]:
    with store.database.connect() as connection:
        return read_transcript(connection, session_id)


def _goals(store: Store, start: TurnStart) -> dict[str, dict[str, Any]]:
    with store.database.connect() as connection:
        waiting = queries.plan_view(connection, store.run(start.run_id), start.turn_id)["goals"]
    found = {}
    while waiting:
        goal = waiting.pop()
        found[goal["id"]] = goal
        waiting += goal["goals"]
    return found


def _in_flight(store: Store, **fields: Any) -> TurnStart:
    """A turn as a killed server leaves it: ``a`` said something, ``b`` waits."""
    start = store.start(plan=PLAN, **fields)
    store.decide(lambda tx: begin_turn(tx, start.run_id))
    bare: dict[str, Any] = dict.fromkeys(("cause", "error", "started_at", "ended_at"))
    bare |= {"status": "NOT_STARTED", "goals": []}
    tree = [{"id": "a", **bare}, {"id": "i", **bare, "goals": [{"id": "b", **bare}]}]
    plan = Event(start.run_id, EventType.PLAN_UPDATED, {"goals": tree, "note": None}, start.turn_id)
    store.decide(lambda tx: tx.emit(plan, mark="plan_seq"))
    for goal_id, status in (("i", "CHILDREN_IN_PROGRESS"), ("a", "IN_PROGRESS")):
        store.writer.emit(Event(start.run_id, EventType.GOAL_STATUS, {"status": status}, start.turn_id, goal_id))
    for words in ("half ", "an answer"):
        store.writer.emit(Event(start.run_id, EventType.TEXT, {"text": words}, start.turn_id, "a"))
    store.flush()
    return start


def test_a_turn_that_was_running_is_parked_as_lost_with_what_it_said_and_every_goal_final(store: Store) -> None:
    start = _in_flight(store)
    assert settle_lost_turns(store.writer) == []
    assert store.run(start.run_id)["state"] == "awaiting_input"
    assert _types(store, start.run_id)[-2:] == ["turn_cancelled", "awaiting_input"]
    assert _transcript(store)[-1] | {
        "content": "half an answer", "stopped": True, "cause": "server_lost"
    } == _transcript(store)[-1]  # fmt: skip
    goals = _goals(store, start)
    assert {goal["status"] for goal in goals.values()} == {"CANCELLED"}
    assert all(goal["ended_at"] for goal in goals.values())
    with store.database.connect() as connection:
        (receipt,) = queries.receipts(connection, start.run_id)
    assert {item["id"]: item["outcome"] for item in receipt["receipt"]} == {
        "a": "cancelled", "i": "cancelled", "b": "not_started"
    }  # fmt: skip


def test_settling_again_changes_nothing(store: Store) -> None:
    start = _in_flight(store)
    settle_lost_turns(store.writer)
    before = _types(store, start.run_id)
    assert settle_lost_turns(store.writer) == []
    assert _types(store, start.run_id) == before


@pytest.mark.parametrize("order", [STOP, TERMINATE], ids=["a stop", "a terminate"])
def test_a_stop_that_the_lost_server_had_recorded_stays_the_users(store: Store, order: StopOrder) -> None:
    start = _in_flight(store)
    store.decide(lambda tx: request_stop(tx, start.run_id, start.turn_id, order))
    settle_lost_turns(store.writer)
    assert store.run(start.run_id)["state"] == ("cancelled" if order.ends_run else "awaiting_input")
    assert _types(store, start.run_id).count("stop_requested") == 1
    assert _transcript(store)[-1]["cause"] == "user"
    assert {goal["cause"] for goal in _goals(store, start).values()} == {"user"}


@pytest.mark.parametrize("begun", [False, True])
def test_a_turn_that_had_said_nothing_leaves_a_placeholder_so_that_roles_alternate(store: Store, begun: bool) -> None:
    start = store.start()
    if begun:
        store.decide(lambda tx: begin_turn(tx, start.run_id))
    settle_lost_turns(store.writer)
    assert [each["role"] for each in _transcript(store)] == ["user", "assistant"]
    assert _transcript(store)[-1]["content"] == "[stopped: server_lost before any text]"


def test_a_batch_run_that_was_lost_has_failed(store: Store) -> None:
    start = _in_flight(store, interactive=False)
    settle_lost_turns(store.writer)
    assert store.run(start.run_id)["state"] == "failed"
    assert _types(store, start.run_id)[-2:] == ["turn_cancelled", "run_failed"]


def test_a_parked_run_and_one_that_is_over_are_left_alone(store: Store) -> None:
    start = _in_flight(store)
    settle_lost_turns(store.writer)
    store.decide(lambda tx: send(tx, start.run_id, "next"))
    settle_lost_turns(store.writer)
    assert store.run(start.run_id)["state"] == "awaiting_input"
    assert _types(store, start.run_id).count("turn_cancelled") == 2


def test_what_waited_in_the_inbox_is_still_there(store: Store) -> None:
    start = _in_flight(store)
    store.decide(lambda tx: send(tx, start.run_id, "later"))
    settle_lost_turns(store.writer)
    with store.database.connect() as connection:
        assert [each["text"] for each in queries.inbox(connection, start.run_id)] == ["later"]


def test_a_message_that_came_during_the_stop_starts_a_turn_on_the_next_server(store: Store) -> None:
    start = _in_flight(store)
    store.decide(lambda tx: request_stop(tx, start.run_id, start.turn_id, STOP))
    store.decide(lambda tx: send(tx, start.run_id, "and now this"))
    (following,) = settle_lost_turns(store.writer)
    assert following.input == "and now this"
    assert store.run(start.run_id)["state"] == "queued"


def test_a_late_event_of_the_lost_turn_is_dropped(store: Store) -> None:
    start = _in_flight(store)
    settle_lost_turns(store.writer)
    before = _types(store, start.run_id)
    store.writer.emit(Event(start.run_id, EventType.TEXT, {"text": "late"}, start.turn_id, "a"))
    store.flush()
    assert _types(store, start.run_id) == before


# -- what cannot be settled -------------------------------------------------------------------------------


def test_a_turn_at_the_end_of_a_chain_of_a_thousand_resumed_ones_knows_the_first_and_is_settled(store: Store) -> None:
    stopped: dict[str, Any] = {"state": "cancelled", "cause": "user", "left_out": "resumed"}
    told = {"messages": [{"role": "user", "content": "and hurry"}, {"role": "assistant", "content": "half"}]}
    chain = [turn_line("t0", **stopped, **told)]
    chain += [turn_line(f"t{number}", resumes=f"t{number - 1}", **stopped) for number in range(1, 1_100)]
    chain[-1]["left_out"] = None
    taken = store.decide(lambda tx: Arrival("s1", read_lines([session_line("s1"), *chain])).take_in(tx, ALICE))
    start = store.decide(lambda tx: resume(tx, ALICE, taken["run_id"], None))[1]
    store.decide(lambda tx: begin_turn(tx, start.run_id))
    with store.database.connect() as connection:
        earlier = read_earlier(connection, start)
    assert [each.text for each in earlier.told] == ["and hurry"]
    settle_lost_turns(store.writer)
    assert _types(store, start.run_id)[-2:] == ["turn_cancelled", "awaiting_input"]


def _spoil_plan(store: Store, start: TurnStart) -> None:
    """What stands in the log where its plan was published cannot be read any more."""
    plan = (events.c.run_id == start.run_id) & (events.c.type == "plan_updated")
    store.decide(lambda tx: tx.connection.execute(update(events).where(plan).values(data="{whispered")))


def test_one_turn_that_cannot_be_settled_fails_and_the_others_are_settled_all_the_same(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt, batch, stopped = (_in_flight(store, session_id=f"s{number}", interactive=number != 2) for number in (1, 2, 3))
    fine = _in_flight(store, session_id="s4")
    store.decide(lambda tx: request_stop(tx, stopped.run_id, stopped.turn_id, STOP))
    for start in (spoilt, batch, stopped):
        _spoil_plan(store, start)
    assert settle_lost_turns(store.writer) == []
    ends = {start.run_id: _types(store, start.run_id)[-2:] for start in (spoilt, batch, stopped, fine)}
    assert list(ends.values()) == [
        ["turn_failed", "awaiting_input"], ["turn_failed", "run_failed"],
        ["turn_cancelled", "awaiting_input"], ["turn_cancelled", "awaiting_input"],
    ]  # fmt: skip
    assert [each["content"] for each in _transcript(store)] == ["hello", "[failed before any text]"]
    assert store.decide(lambda tx: send(tx, spoilt.run_id, "next"))[0]["disposition"] == "started"
    assert [message for message in caplog.messages if spoilt.run_id in message] == [
        f"the turn {spoilt.turn_id} of {spoilt.run_id} could not be settled: JSONDecodeError"
    ]
    assert "whispered" not in caplog.text


def test_a_run_that_cannot_even_be_ended_is_left_open_and_named_in_the_log(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    lost, fine = _in_flight(store), _in_flight(store, session_id="s2")
    store.decide(lambda tx: tx.connection.execute(
        update(runs).where(runs.c.id == lost.run_id).values(turn_id="t_nowhere")
    ))  # fmt: skip
    assert settle_lost_turns(store.writer) == []
    assert store.run(lost.run_id)["state"] == "running"
    assert store.run(fine.run_id)["state"] == "awaiting_input"
    assert f"{lost.run_id} is left open" in caplog.text


def test_a_store_that_takes_no_writes_is_no_fault_of_a_run_and_refuses_the_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_flight(store)

    def refuse(*_: Any) -> None:
        raise OperationalError("insert", {}, Exception("disk is full"))

    monkeypatch.setattr(store.writer._committer, "_insert", refuse)
    with pytest.raises(StoreError):
        settle_lost_turns(store.writer)


@pytest.mark.parametrize(
    ("lost", "queued", "words"),
    [
        (0, 0, []),
        (1, 0, ["open turns that an earlier server left: 1, taken up again: 0"]),
        (3, 1, ["open turns that an earlier server left: 4, taken up again: 1"]),
        (0, 2, ["open turns that an earlier server left: 2, taken up again: 2"]),
    ],
)
def test_the_log_tells_the_turns_that_have_ended_from_those_that_go_on(
    store: Store, caplog: pytest.LogCaptureFixture, lost: int, queued: int, words: list[str]
) -> None:
    for number in range(lost):
        run_id = _in_flight(store, session_id=f"l{number}").run_id
        store.decide(partial(request_stop, run_id=run_id, turn_id=store.run(run_id)["turn_id"], order=STOP))
        store.decide(partial(send, run_id=run_id, text="next"))  # it starts a turn of its own
    for number in range(queued):
        store.start(session_id=f"q{number}", on_server_lost="resume")
    settle_lost_turns(store.writer)
    assert caplog.messages == words


# -- as the live turn would have written it ---------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=specs(6), data=st.data())
def test_the_log_gives_the_message_that_the_live_turn_wrote_wherever_it_was_stopped(
    shared: Store, spec: Any, data: st.DataObject
) -> None:
    said = data.draw(st.lists(st.lists(st.text(max_size=5), max_size=4), min_size=6, max_size=6))
    fails = data.draw(st.lists(st.booleans(), min_size=6, max_size=6))
    stop_at = data.draw(st.none() | st.integers(0, 20))
    lock, spoken = threading.Lock(), [0]

    def work(turn: Turn, goal: Goal) -> str:
        number = int(goal.id[1:])
        for words in said[number]:
            turn.say(goal, words)
            with lock:
                spoken[0] += 1
                is_now = spoken[0] == stop_at
            if is_now:
                turn.stop(STOP)
        if fails[number]:
            raise ProviderError("the model is down")
        return "".join(said[number])

    start = shared.start(session_id=f"l{data.draw(st.uuids())}", plan=spec.model_dump(), interactive=False)
    turn = Turns(shared, work).launch(start)
    outcome = turn.ended.result(PATIENCE_S)
    with shared.database.connect() as connection:
        row = connection.execute(select(turns).where(turns.c.id == start.turn_id)).mappings().one()
        plan = queries.read_plan(connection, row)
        said = read_said(connection, row, plan["goals"]).said
    end = next(json.loads(each.json) for each in shared.events(start.run_id) if each.type in TURN_ENDS)
    assert end["messages"] == outcome.messages
    assert end["messages"] == turn_messages(said, outcome.state, end.get("cause"))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_store_that_was_copied_in_the_middle_of_a_turn_is_settled_to_the_same_text(
    tmp_path: Path, store: Store, is_stopped: bool
) -> None:
    half_way, let_go = threading.Event(), threading.Event()

    def work(turn: Turn, goal: Goal) -> str:
        turn.say(goal, f"{goal.id} says ")
        turn.say(goal, "this")
        if goal.id == "b":
            half_way.set()
            wait_set(let_go)
        assert goal.scope is not None
        goal.scope.checkpoint()
        return f"{goal.id} says this"

    running = Turns(store, work)
    turn = running.launch(store.start(plan=PLAN))
    wait_set(half_way)
    if is_stopped:
        store.decide(lambda tx: request_stop(tx, turn.start.run_id, turn.start.turn_id, STOP))
    store.flush()
    shutil.copytree(tmp_path / "one", tmp_path / "other")  # what kill -9 would leave
    turn.stop(STOP)
    let_go.set()
    turn.ended.result(PATIENCE_S)
    with open_store(tmp_path / "other") as other:
        settle_lost_turns(other.writer)
        theirs, ours = _transcript(other), _transcript(store)
        assert {goal["status"] for goal in _goals(other, turn.start).values()} == {"COMPLETED", "CANCELLED"}
        results = {name: goal["result"] for name, goal in _goals(other, turn.start).items()}
        assert results == {"a": "a says this", "i": None, "b": None}
    if is_stopped:
        assert theirs == ours
    assert [each["content"] for each in theirs] == [each["content"] for each in ours]
