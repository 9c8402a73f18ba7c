"""The moves of a run over a store: starting, stops, ends. Each is one decision, with its events."""

from __future__ import annotations

import pytest

from core.cancellation import Cause, CauseWord
from core.errors import IdempotencyConflict, NotFound, NotInteractive, RunIsOver, SessionIsBusy, TurnIsOver
from core.session.records import NewRun, StopOrder
from core.session.starts import start_run
from tests.support.api_client import in_threads
from tests.support.core_kit import ALICE, BOB, Store, User
from tests.support.store_moves_kit import SAID, STOP, TERMINATE, begin, data_of, finish, refused, say, stop, types_of

pytestmark = pytest.mark.usefixtures("store_url")  # on both databases


# -- starting a run -------------------------------------------------------------------------------


def test_a_new_run_is_queued_with_its_first_turn_and_two_events(store: Store) -> None:
    start = store.start(metadata={"colour": "red"})
    run = store.run(start.run_id)
    assert (run["state"], run["turn_id"], run["owner"]) == ("queued", start.turn_id, "alice")
    assert types_of(store, start.run_id) == ["run_started", "turn_started"]
    assert data_of(store, start.run_id, "run_started")["metadata"] == {"colour": "red"}
    assert data_of(store, start.run_id, "turn_started") | {"input": "hello", "number": 1} == data_of(
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
    finish(store, store.start(), order=TERMINATE)
    refused(NotFound, lambda: store.start(caller))


def test_the_next_run_of_a_session_goes_on_with_its_turn_numbers(store: Store) -> None:
    first = store.start()
    begin(store, first)
    finish(store, first)
    stop(store, first, TERMINATE)
    second = store.start(input="again")
    assert data_of(store, second.run_id, "turn_started")["number"] == 2


def test_an_idempotency_key_gives_the_first_answer_again_and_starts_nothing(store: Store) -> None:
    new = NewRun("hello", "s1", idempotency_key="k", body_hash="h")
    answer, start = store.decide(lambda tx: start_run(tx, ALICE, new))
    assert start is not None
    again, nothing = store.decide(lambda tx: start_run(tx, ALICE, new))
    assert (again, nothing) == (answer, None)
    other = NewRun("other", "s1", idempotency_key="k", body_hash="other")
    refused(IdempotencyConflict, lambda: store.decide(lambda tx: start_run(tx, ALICE, other)))
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
    assert begin(store, start) is None
    assert store.run(start.run_id)["state"] == "running"
    recorded, following = finish(store, start, state, error="no goal was completed" if state == "failed" else None)
    assert (recorded.state, following) == (state, None)
    assert store.run(start.run_id)["state"] == parked
    assert types_of(store, start.run_id)[2:] == [f"turn_{state}", "awaiting_input"]
    assert data_of(store, start.run_id, f"turn_{state}")["messages"] == SAID


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_a_batch_run_ends_with_its_turn(store: Store, state: str) -> None:
    start = store.start(interactive=False)
    begin(store, start)
    finish(store, start, state)
    run = store.run(start.run_id)
    assert run["state"] == state
    assert run["ended_at"] is not None
    assert types_of(store, start.run_id)[2:] == [f"turn_{state}", f"run_{state}"]


@pytest.mark.parametrize("interactive", [True, False])
def test_a_turn_whose_begin_was_never_recorded_can_end(store: Store, interactive: bool) -> None:
    start = store.start(interactive=interactive)
    finish(store, start, "failed", error="the store took no writes")
    assert store.run(start.run_id)["state"] == ("awaiting_input" if interactive else "failed")


def test_the_first_end_of_a_turn_stands(store: Store) -> None:
    start = store.start()
    begin(store, start)
    finish(store, start)
    before = types_of(store, start.run_id)
    refused(TurnIsOver, lambda: finish(store, start, "failed"))
    assert types_of(store, start.run_id) == before


# -- stopping ------------------------------------------------------------------------------------------


def test_a_stop_is_recorded_once_however_often_it_is_asked_for(store: Store) -> None:
    start = store.start()
    begin(store, start)
    assert in_threads(6, lambda _: stop(store, start)) == [True] * 6
    assert store.run(start.run_id)["state"] == "stopping"
    assert types_of(store, start.run_id).count("stop_requested") == 1
    finish(store, start, "cancelled", STOP)
    assert types_of(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "awaiting_input"]
    end = data_of(store, start.run_id, "turn_cancelled")
    assert (end["cause"], end["reason"], end["receipt"]) == ("user", "enough", [])


def test_a_recorded_stop_wins_over_a_turn_that_believes_it_completed(store: Store) -> None:
    start = store.start()
    begin(store, start)
    stop(store, start)
    recorded, _ = finish(store, start, "completed")
    assert recorded.state == "cancelled"
    assert types_of(store, start.run_id)[-2:] == ["turn_cancelled", "awaiting_input"]


def test_a_stop_that_the_turn_knows_and_nobody_recorded_is_recorded_with_its_end(store: Store) -> None:
    start = store.start()
    begin(store, start)
    finish(store, start, "cancelled", StopOrder(Cause(CauseWord.DEADLINE, "too long")))
    assert types_of(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "awaiting_input"]
    assert data_of(store, start.run_id, "stop_requested")["cause"] == "deadline"


def test_a_stop_before_the_turn_began_is_handed_to_whoever_begins_it(store: Store) -> None:
    start = store.start()
    stop(store, start)
    order = begin(store, start)
    assert order is not None
    assert order.cause == STOP.cause
    assert store.run(start.run_id)["state"] == "stopping"


def test_a_stop_of_a_parked_run_changes_nothing(store: Store) -> None:
    start = store.start()
    begin(store, start)
    finish(store, start)
    before = types_of(store, start.run_id)
    assert not stop(store, start)
    assert types_of(store, start.run_id) == before


def test_a_stop_of_a_turn_that_is_not_the_current_one_is_refused(store: Store) -> None:
    start = store.start()
    begin(store, start)
    finish(store, start)
    _, second = say(store, start, "next")
    assert second is not None
    refused(TurnIsOver, lambda: stop(store, start))
    assert store.run(start.run_id)["state"] == "queued"


def test_a_batch_run_has_no_turn_stop_and_can_be_terminated(store: Store) -> None:
    start = store.start(interactive=False)
    begin(store, start)
    refused(NotInteractive, lambda: stop(store, start))
    stop(store, start, TERMINATE)
    finish(store, start, "cancelled", TERMINATE)
    assert store.run(start.run_id)["state"] == "cancelled"
    assert types_of(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "run_cancelled"]


def test_a_terminate_of_a_parked_run_ends_it_and_one_more_is_refused(store: Store) -> None:
    start = store.start()
    begin(store, start)
    finish(store, start)
    assert not stop(store, start, TERMINATE)
    assert store.run(start.run_id)["state"] == "cancelled"
    assert types_of(store, start.run_id)[-1] == "run_cancelled"
    refused(RunIsOver, lambda: stop(store, start, TERMINATE))
    refused(RunIsOver, lambda: say(store, start, "hello?"))


def test_a_terminate_that_joins_a_stop_ends_the_run_and_keeps_the_first_cause(store: Store) -> None:
    start = store.start()
    begin(store, start)
    stop(store, start)
    stop(store, start, TERMINATE)
    stop(store, start)
    finish(store, start, "cancelled", STOP)
    assert store.run(start.run_id)["state"] == "cancelled"
    assert types_of(store, start.run_id)[2:] == ["stop_requested", "turn_cancelled", "run_cancelled"]
    assert data_of(store, start.run_id, "run_cancelled")["reason"] == "enough"
