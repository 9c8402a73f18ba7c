"""The moves of a run over a store: starting, messages, stops, ends. Each is one decision, with its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Cause, CauseWord
from core.errors import (
    IdempotencyConflict,
    NotFound,
    NotInteractive,
    QueueFull,
    RunIsOver,
    ServerError,
    SessionIsBusy,
    TurnIsOver,
)
from core.session.inbox import MAX_WAITING
from core.session.queries import inbox
from core.session.records import NewRun, StopOrder, TurnOutcome, TurnStart
from core.session.starts import accept_message, start_run
from core.session.turns import begin_turn, end_turn, request_stop
from tests.support.api_client import in_threads
from tests.support.core_kit import ALICE, BOB, Store, User, open_store

STOP = StopOrder(Cause(CauseWord.USER, "enough"))
TERMINATE = StopOrder(Cause(CauseWord.USER), ends_run=True)
SAID = [{"role": "assistant", "content": "done"}]
ENDS = ("turn_completed", "turn_cancelled", "turn_failed")


@pytest.fixture
def store(tmp_path: Path, store_url: str | None) -> Iterator[Store]:
    with open_store(tmp_path, store_url) as opened:
        yield opened


def _types(store: Store, run_id: str, after: int = 0) -> list[str]:
    return [each.type for each in store.events(run_id)[after:]]


def _data(store: Store, run_id: str, event_type: str) -> dict[str, Any]:
    found = [json.loads(each.json) for each in store.events(run_id) if each.type == event_type]
    return dict(found[-1])


def _begin(store: Store, start: TurnStart) -> StopOrder | None:
    return store.decide(lambda tx: begin_turn(tx, start.run_id))


def _stop(store: Store, start: TurnStart, order: StopOrder = STOP) -> bool:
    return store.decide(lambda tx: request_stop(tx, start.run_id, start.turn_id, order))


def _end(
    store: Store, start: TurnStart, state: str = "completed", order: StopOrder | None = None, error: str | None = None
) -> tuple[TurnOutcome, TurnStart | None]:
    outcome = TurnOutcome(state, SAID, order, [], error)
    return store.decide(lambda tx: end_turn(tx, start.run_id, start.turn_id, outcome))


def _say(
    store: Store, start: TurnStart, text: str, if_turn: str | None = None, client_id: str | None = None,
    caller: User = ALICE,
) -> tuple[dict[str, Any], TurnStart | None]:  # fmt: skip
    return store.decide(lambda tx: accept_message(tx, caller, start.run_id, text, if_turn, client_id))


def _refused(kind: type[ServerError], work: Callable[[], Any]) -> ServerError:
    with pytest.raises(kind) as caught:
        work()
    return caught.value


def _waiting(store: Store, start: TurnStart) -> list[tuple[str, bool]]:
    with store.database.connect() as connection:
        return [(each["text"], each["held"]) for each in inbox(connection, start.run_id)]


# -- starting a run -------------------------------------------------------------------------------


def test_a_new_run_is_queued_with_its_first_turn_and_two_events(store: Store) -> None:
    start = store.start(metadata={"colour": "red"})
    run = store.run(start.run_id)
    assert (run["state"], run["turn_id"], run["owner"]) == ("queued", start.turn_id, "alice")
    assert _types(store, start.run_id) == ["run_started", "turn_started"]
    assert _data(store, start.run_id, "run_started")["metadata"] == {"colour": "red"}
    assert _data(store, start.run_id, "turn_started") | {"input": "hello", "number": 1} == _data(
        store, start.run_id, "turn_started"
    )


def test_a_session_has_one_live_run_whoever_races(store: Store) -> None:
    def start(_: int) -> str:
        try:
            return store.start().run_id
        except SessionIsBusy as error:
            return f"busy with {error.extra['run_id']}"

    told = in_threads(8, start)
    (run_id,) = {each for each in told if each.startswith("r_")}
    assert told.count(f"busy with {run_id}") == 7


@pytest.mark.parametrize("caller", [BOB, User("alice", "other"), User("alice", session_id="s2")])
def test_a_session_of_somebody_else_does_not_exist(store: Store, caller: User) -> None:
    _end(store, store.start(), order=TERMINATE)
    _refused(NotFound, lambda: store.start(caller))


def test_the_next_run_of_a_session_goes_on_with_its_turn_numbers(store: Store) -> None:
    first = store.start()
    _begin(store, first)
    _end(store, first)
    _stop(store, first, TERMINATE)
    second = store.start(input="again")
    assert _data(store, second.run_id, "turn_started")["number"] == 2


def test_an_idempotency_key_gives_the_first_answer_again_and_starts_nothing(store: Store) -> None:
    new = NewRun("hello", "s1", idempotency_key="k", body_hash="h")
    answer, start = store.decide(lambda tx: start_run(tx, ALICE, new))
    assert start is not None
    again, nothing = store.decide(lambda tx: start_run(tx, ALICE, new))
    assert (again, nothing) == (answer, None)
    other = NewRun("other", "s1", idempotency_key="k", body_hash="other")
    _refused(IdempotencyConflict, lambda: store.decide(lambda tx: start_run(tx, ALICE, other)))
    theirs, start = store.decide(lambda tx: start_run(tx, BOB, NewRun("x", "s2", idempotency_key="k", body_hash="h")))
    assert theirs["run_id"] != answer["run_id"]


def test_of_many_starts_with_one_key_at_once_one_starts_a_turn(store: Store) -> None:
    new = NewRun("hello", "s1", idempotency_key="k", body_hash="h")
    told = in_threads(8, lambda _: store.decide(lambda tx: start_run(tx, ALICE, new)))
    assert len({answer["run_id"] for answer, _ in told}) == 1
    assert sum(start is not None for _, start in told) == 1


# -- one turn ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "parked"), [("completed", "awaiting_input"), ("failed", "awaiting_input")]
)
def test_an_interactive_run_parks_after_its_turn(store: Store, state: str, parked: str) -> None:
    start = store.start()
    assert _begin(store, start) is None
    assert store.run(start.run_id)["state"] == "running"
    recorded, following = _end(store, start, state, error="no goal was completed" if state == "failed" else None)
    assert (recorded.state, following) == (state, None)
    assert store.run(start.run_id)["state"] == parked
    assert _types(store, start.run_id)[2:] == [f"turn_{state}", "awaiting_input"]
    assert _data(store, start.run_id, f"turn_{state}")["messages"] == SAID


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_a_batch_run_ends_with_its_turn(store: Store, state: str) -> None:
    start = store.start(interactive=False)
    _begin(store, start)
    _end(store, start, state)
    run = store.run(start.run_id)
    assert run["state"] == state
    assert run["ended_at"] is not None
    assert _types(store, start.run_id)[2:] == [f"turn_{state}", f"run_{state}"]


@pytest.mark.parametrize("interactive", [True, False])
def test_a_turn_whose_begin_was_never_recorded_can_end(store: Store, interactive: bool) -> None:
    start = store.start(interactive=interactive)
    _end(store, start, "failed", error="the store took no writes")
    assert store.run(start.run_id)["state"] == ("awaiting_input" if interactive else "failed")


def test_the_first_end_of_a_turn_stands(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _end(store, start)
    before = _types(store, start.run_id)
    _refused(TurnIsOver, lambda: _end(store, start, "failed"))
    assert _types(store, start.run_id) == before


# -- stopping ------------------------------------------------------------------------------------------


def test_a_stop_is_recorded_once_however_often_it_is_asked_for(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    assert in_threads(6, lambda _: _stop(store, start)) == [True] * 6
    assert store.run(start.run_id)["state"] == "stopping"
    assert _types(store, start.run_id).count("stop_requested") == 1
    _end(store, start, "cancelled", STOP)
    assert _types(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "awaiting_input"]
    end = _data(store, start.run_id, "turn_cancelled")
    assert (end["cause"], end["reason"], end["receipt"]) == ("user", "enough", [])


def test_a_recorded_stop_wins_over_a_turn_that_believes_it_completed(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _stop(store, start)
    recorded, _ = _end(store, start, "completed")
    assert recorded.state == "cancelled"
    assert _types(store, start.run_id)[-2:] == ["turn_cancelled", "awaiting_input"]


def test_a_stop_that_the_turn_knows_and_nobody_recorded_is_recorded_with_its_end(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _end(store, start, "cancelled", StopOrder(Cause(CauseWord.DEADLINE, "too long")))
    assert _types(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "awaiting_input"]
    assert _data(store, start.run_id, "stop_requested")["cause"] == "deadline"


def test_a_stop_before_the_turn_began_is_handed_to_whoever_begins_it(store: Store) -> None:
    start = store.start()
    _stop(store, start)
    order = _begin(store, start)
    assert order is not None
    assert order.cause == STOP.cause
    assert store.run(start.run_id)["state"] == "stopping"


def test_a_stop_of_a_parked_run_changes_nothing(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _end(store, start)
    before = _types(store, start.run_id)
    assert not _stop(store, start)
    assert _types(store, start.run_id) == before


def test_a_stop_of_a_turn_that_is_not_the_current_one_is_refused(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _end(store, start)
    _, second = _say(store, start, "next")
    assert second is not None
    _refused(TurnIsOver, lambda: _stop(store, start))
    assert store.run(start.run_id)["state"] == "queued"


def test_a_batch_run_has_no_turn_stop_and_can_be_terminated(store: Store) -> None:
    start = store.start(interactive=False)
    _begin(store, start)
    _refused(NotInteractive, lambda: _stop(store, start))
    _stop(store, start, TERMINATE)
    _end(store, start, "cancelled", TERMINATE)
    assert store.run(start.run_id)["state"] == "cancelled"
    assert _types(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "run_cancelled"]


def test_a_terminate_of_a_parked_run_ends_it_and_one_more_is_refused(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _end(store, start)
    assert not _stop(store, start, TERMINATE)
    assert store.run(start.run_id)["state"] == "cancelled"
    assert _types(store, start.run_id)[-1] == "run_cancelled"
    _refused(RunIsOver, lambda: _stop(store, start, TERMINATE))
    _refused(RunIsOver, lambda: _say(store, start, "hello?"))


def test_a_terminate_that_joins_a_stop_ends_the_run_and_keeps_the_first_cause(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _stop(store, start)
    _stop(store, start, TERMINATE)
    _stop(store, start)
    _end(store, start, "cancelled", STOP)
    assert store.run(start.run_id)["state"] == "cancelled"
    assert _types(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "run_cancelled"]
    assert _data(store, start.run_id, "run_cancelled")["reason"] == "enough"


# -- messages ------------------------------------------------------------------------------------------------


def test_a_message_to_a_parked_run_starts_a_turn(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _end(store, start)
    before = len(store.events(start.run_id))
    answer, second = _say(store, start, "next")
    assert second is not None
    assert answer == {"message_id": answer["message_id"], "disposition": "started", "turn_id": second.turn_id}
    assert (second.input, store.run(start.run_id)["state"]) == ("next", "queued")
    assert _types(store, start.run_id, before) == ["turn_started", "message_delivered"]


def test_messages_to_a_running_turn_wait_and_start_the_next_turns_in_order(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    for text in ("one", "two"):
        answer, nothing = _say(store, start, text)
        assert (answer["disposition"], nothing) == ("queued", None)
    current: TurnStart | None = start
    inputs = []
    while current is not None:
        inputs.append(current.input)
        _, current = _end(store, current)
        if current is not None:
            _begin(store, current)
    assert inputs == ["hello", "one", "two"]
    assert store.run(start.run_id)["state"] == "awaiting_input"
    assert _waiting(store, start) == []
    assert _types(store, start.run_id).count("message_delivered") == 2


def test_a_message_is_taken_once_by_its_client_id(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    first, _ = _say(store, start, "one", client_id="c1")
    again, nothing = _say(store, start, "one", client_id="c1")
    assert (again["disposition"], again["message_id"], nothing) == ("duplicate", first["message_id"], None)
    _end(store, start)
    delivered, _ = _say(store, start, "one", client_id="c1")
    assert delivered["turn_id"] == store.run(start.run_id)["turn_id"]
    told = in_threads(6, lambda _: _say(store, start, "two", client_id="c2")[0]["disposition"])
    assert sorted(told) == ["duplicate"] * 5 + ["queued"]


@pytest.mark.parametrize(
    ("policy", "left", "event"),
    [
        ("keep", [("one", True), ("two", True)], None),
        ("return", [], "message_returned"),
        ("drop", [], "message_withdrawn"),
    ],
)
def test_what_waits_at_a_stop_is_kept_handed_back_or_dropped(
    store: Store, policy: str, left: list[tuple[str, bool]], event: str | None
) -> None:
    start = store.start()
    _begin(store, start)
    for text in ("one", "two"):
        _say(store, start, text)
    before = len(store.events(start.run_id))
    _stop(store, start, StopOrder(STOP.cause, inbox=policy))
    assert _waiting(store, start) == left
    assert _types(store, start.run_id, before) == ["stop_requested"] + ([event] * 2 if event else [])
    _, following = _end(store, start, "cancelled", STOP)
    assert following is None
    assert store.run(start.run_id)["state"] == "awaiting_input"
    assert _waiting(store, start) == left


def test_what_was_kept_at_a_stop_goes_before_the_next_message(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _say(store, start, "kept")
    _stop(store, start)
    _end(store, start, "cancelled", STOP)
    answer, second = _say(store, start, "next")
    assert second is not None
    assert (second.input, answer["disposition"]) == ("kept", "queued")
    _begin(store, second)
    _, third = _end(store, second)
    assert third is not None
    assert third.input == "next"


def test_a_message_during_the_stop_starts_the_next_turn_and_what_was_kept_goes_before_it(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _say(store, start, "kept")
    _stop(store, start)
    answer, nothing = _say(store, start, "during")
    assert (answer["disposition"], nothing) == ("queued", None)
    _, second = _end(store, start, "cancelled", STOP)
    assert second is not None
    assert second.input == "kept"
    _begin(store, second)
    _, third = _end(store, second)
    assert third is not None
    assert third.input == "during"


def test_the_end_of_a_run_hands_everything_back(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _say(store, start, "held")
    _stop(store, start)
    _say(store, start, "queued")
    _stop(store, start, TERMINATE)
    _end(store, start, "cancelled", TERMINATE)
    assert _waiting(store, start) == []
    types = _types(store, start.run_id)
    assert types.count("message_returned") == 2
    assert types[-1] == "run_cancelled"
    assert _data(store, start.run_id, "message_returned")["text"] == "queued"


def test_a_shutdown_leaves_what_waits_for_the_next_server(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _say(store, start, "later")
    _, following = _end(store, start, "cancelled", StopOrder(Cause(CauseWord.SHUTDOWN)))
    assert following is None
    assert [text for text, _ in _waiting(store, start)] == ["later"]


def test_a_batch_run_that_a_shutdown_ends_has_failed(store: Store) -> None:
    start = store.start(interactive=False)
    _begin(store, start)
    _end(store, start, "cancelled", StopOrder(Cause(CauseWord.SHUTDOWN)))
    assert store.run(start.run_id)["state"] == "failed"
    assert _data(store, start.run_id, "run_failed")["cause"] == "shutdown"


def test_more_than_so_many_waiting_messages_are_refused_with_a_time_to_come_back(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    for n in range(MAX_WAITING):
        _say(store, start, str(n))
    error = _refused(QueueFull, lambda: _say(store, start, "one more"))
    assert int(error.headers["Retry-After"]) > 0
    assert len(_waiting(store, start)) == MAX_WAITING


def test_messages_are_refused_in_the_order_of_the_contract(store: Store) -> None:
    start = store.start()
    _begin(store, start)
    _refused(NotFound, lambda: _say(store, start, "x", caller=BOB))
    _refused(TurnIsOver, lambda: _say(store, start, "x", if_turn="t_other"))
    assert _say(store, start, "x", if_turn=start.turn_id)[0]["disposition"] == "queued"
    batch = store.start(session_id="s2", interactive=False)
    _refused(TurnIsOver, lambda: _say(store, batch, "x", if_turn="t_other"))
    _refused(NotInteractive, lambda: _say(store, batch, "x"))
    _begin(store, batch)
    _end(store, batch)
    _refused(RunIsOver, lambda: _say(store, batch, "x", if_turn="t_other"))


def test_every_turn_has_exactly_one_end_and_nothing_of_it_follows(store: Store) -> None:
    start = store.start()
    current: TurnStart | None = start
    for text in ("a", "b", "c"):
        _say(store, start, text)
    steps = 0
    while current is not None:
        _begin(store, current)
        if steps % 2:
            _stop(store, current, StopOrder(STOP.cause, inbox="keep"))
            _say(store, start, f"more{steps}") if steps < 6 else None
        _, current = _end(store, current)
        steps += 1
    stored = [json.loads(each.json) for each in store.events(start.run_id)]
    turn_ids = {each["turn_id"] for each in stored if "turn_id" in each}
    assert len(turn_ids) == steps
    for turn_id in turn_ids:
        mine = [each["type"] for each in stored if each.get("turn_id") == turn_id]
        assert sum(each in ENDS for each in mine) == 1
        assert mine[-1] in ENDS
