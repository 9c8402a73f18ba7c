"""Messages that wait, in the hands of their user: withdrawn, and put into another order. Each is one decision."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import RowMapping

from core.errors import MessageIsSettled, NotFound
from core.session import inbox, queries
from core.session.records import TurnStart
from tests.support.core_kit import Store
from tests.support.store_moves_kit import (
    STOP,
    TERMINATE,
    begin,
    data_of,
    finish,
    refused,
    say,
    stop,
    types_of,
    waiting,
)

pytestmark = pytest.mark.usefixtures("store_url")  # on both databases

_sessions = itertools.count(1)


def begun(store: Store, *texts: str) -> tuple[TurnStart, list[str]]:
    """A running turn, and the ids of the messages that wait for its end."""
    start = store.start(session_id=f"inbox-{next(_sessions)}")
    begin(store, start)
    return start, [say(store, start, text)[0]["message_id"] for text in texts]


def withdraw(store: Store, start: TurnStart, message_id: str) -> None:
    store.decide(lambda tx: inbox.withdraw(tx, _row(store, start), message_id))


def move(store: Store, start: TurnStart, message_id: str, position: int) -> None:
    store.decide(lambda tx: inbox.move(tx, _row(store, start), message_id, position))


def _row(store: Store, start: TurnStart) -> RowMapping:
    return store.run(start.run_id)


def texts_of(store: Store, start: TurnStart) -> list[str]:
    """What waits, in order."""
    return [text for text, _ in waiting(store, start)]


def view(store: Store, start: TurnStart, message_id: str) -> dict[str, Any]:
    """A message as it is shown."""
    with store.database.connect() as connection:
        return queries.message_view(inbox.find_message(connection, start.run_id, message_id))


# -- withdrawing -----------------------------------------------------------------------------


def test_a_message_that_is_withdrawn_is_not_delivered_and_its_text_is_told_once(store: Store) -> None:
    start, (one, two) = begun(store, "one", "two")
    withdraw(store, start, one)
    withdraw(store, start, one)
    assert types_of(store, start.run_id).count("message_withdrawn") == 1
    told = data_of(store, start.run_id, "message_withdrawn")
    assert (told["message_id"], told["text"], told["turn_id"]) == (one, "one", start.turn_id)
    shown = view(store, start, one)
    assert (shown["state"], shown["turn_id"], shown["position"]) == ("withdrawn", None, None)
    assert shown["settled_at"] is not None
    _, following = finish(store, start)
    assert following is not None
    assert following.input == "two"
    assert view(store, start, two)["state"] == "delivered"


def test_the_last_message_withdrawn_lets_the_run_park(store: Store) -> None:
    start, (one,) = begun(store, "one")
    withdraw(store, start, one)
    assert finish(store, start)[1] is None
    assert store.run(start.run_id)["state"] == "awaiting_input"


def test_what_was_kept_at_a_stop_is_withdrawn_from_a_parked_run(store: Store) -> None:
    start, (one, two) = begun(store, "one", "two")
    stop(store, start)
    finish(store, start, "cancelled", STOP)
    assert (view(store, start, one)["state"], view(store, start, one)["settled_at"]) == ("held", None)
    withdraw(store, start, one)
    assert "turn_id" not in data_of(store, start.run_id, "message_withdrawn")
    assert texts_of(store, start) == ["two"]
    assert say(store, start, "three")[1].input == "two"  # type: ignore[union-attr]
    assert view(store, start, two)["position"] == 0


def test_a_message_with_a_fate_is_neither_withdrawn_nor_moved(store: Store) -> None:
    start, (one,) = begun(store, "one")
    _, second = finish(store, start)
    assert second is not None
    begin(store, second)
    other = say(store, start, "other")[0]["message_id"]
    stop(store, second, TERMINATE)
    for message_id, state in ((one, "delivered"), (other, "returned")):
        for work in (lambda name: withdraw(store, start, name), lambda name: move(store, start, name, 0)):
            error = refused(MessageIsSettled, lambda work=work, name=message_id: work(name))  # type: ignore[misc]
            assert (error.status, error.extra["state"]) == (409, state)
        assert view(store, start, message_id)["state"] == state
    assert view(store, start, one)["turn_id"] == second.turn_id


def test_a_withdrawn_message_is_not_moved(store: Store) -> None:
    start, (one, _) = begun(store, "one", "two")
    withdraw(store, start, one)
    assert refused(MessageIsSettled, lambda: move(store, start, one, 1)).extra["state"] == "withdrawn"


def test_a_message_of_another_run_is_unknown(store: Store) -> None:
    start, _ = begun(store, "mine")
    other, (foreign,) = begun(store, "theirs")
    for work in (lambda: withdraw(store, start, foreign), lambda: move(store, start, foreign, 0)):
        refused(NotFound, work)
    refused(NotFound, lambda: view(store, start, foreign))
    assert texts_of(store, other) == ["theirs"]


# -- another order ----------------------------------------------------------------------------


def test_messages_are_delivered_in_the_order_into_which_they_were_put(store: Store) -> None:
    start, (_, _, three) = begun(store, "one", "two", "three")
    move(store, start, three, 0)
    moved = data_of(store, start.run_id, "message_moved")
    assert (moved["message_id"], moved["position"], moved["turn_id"]) == (three, 0, start.turn_id)
    assert say(store, start, "four")[0]["disposition"] == "queued"
    inputs, current = [], finish(store, start)[1]
    while current is not None:
        inputs.append(current.input)
        begin(store, current)
        current = finish(store, current)[1]
    assert inputs == ["three", "one", "two", "four"]


def test_a_place_beyond_the_end_is_the_last_and_the_same_place_is_no_move(store: Store) -> None:
    start, (one, two) = begun(store, "one", "two")
    move(store, start, one, 0)
    move(store, start, two, 10**30)
    assert "message_moved" not in types_of(store, start.run_id)
    move(store, start, one, 10**30)
    assert data_of(store, start.run_id, "message_moved")["position"] == 1
    assert texts_of(store, start) == ["two", "one"]


def test_what_is_held_can_be_moved_and_stays_held(store: Store) -> None:
    start, (one, _) = begun(store, "one", "two")
    stop(store, start)
    move(store, start, one, 1)
    finish(store, start, "cancelled", STOP)
    assert waiting(store, start) == [("two", True), ("one", True)]
    move(store, start, one, 0)
    assert "turn_id" not in data_of(store, start.run_id, "message_moved")
    assert say(store, start, "three")[1].input == "one"  # type: ignore[union-attr]


STEPS = st.lists(
    st.tuples(st.sampled_from(["move", "move", "move", "withdraw", "say"]), st.integers(0, 7), st.integers(0, 9)),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(0, 6), steps=STEPS)
def test_any_moves_give_the_order_of_a_list_and_lose_nothing(
    store: Store, count: int, steps: list[tuple[str, int, int]]
) -> None:
    numbers = itertools.count(1)
    expected = [str(next(numbers)) for _ in range(count)]
    start, ids = begun(store, *expected)
    by_text = dict(zip(expected, ids, strict=True))
    moves = 0
    for what, which, position in steps:
        if what == "say" or not expected:
            text = str(next(numbers))
            by_text[text] = say(store, start, text)[0]["message_id"]
            expected.append(text)
            continue
        text = expected.pop(which % len(expected))
        if what == "withdraw":
            withdraw(store, start, by_text[text])
            continue
        before = [*expected]
        before.insert(which % (len(expected) + 1), text)
        expected.insert(position, text)
        moves += before != expected
        move(store, start, by_text[text], position)
        assert texts_of(store, start) == expected
    assert texts_of(store, start) == expected
    assert types_of(store, start.run_id).count("message_moved") == moves
    delivered, current = [], finish(store, start)[1]
    while current is not None:
        delivered.append(current.input)
        begin(store, current)
        current = finish(store, current)[1]
    assert delivered == expected
