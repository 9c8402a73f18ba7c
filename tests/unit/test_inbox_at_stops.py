"""What a stop does with the messages that wait is part of its record, and that is what became of them."""

from __future__ import annotations

from typing import Any

import pytest

from core.cancellation import Cause, CauseWord
from core.errors import RunIsOver
from core.session import inbox, queries
from core.session.records import StopOrder, TurnStart
from core.session.stop_moves import read_fates
from core.session.turns import begin_turn
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
    stop_record,
    types_of,
)

pytestmark = pytest.mark.usefixtures("store_url")  # on both databases

LISTS = {"keep": "kept", "return": "returned", "drop": "withdrawn"}
STATES = {"kept": "held", "returned": "returned", "withdrawn": "withdrawn"}


def fates(policy: str, **lists: list[str]) -> dict[str, Any]:
    """As a stop records them."""
    return {"policy": policy, "kept": [], "returned": [], "withdrawn": [], **lists}


def begun(store: Store, *texts: str, **fields: Any) -> tuple[TurnStart, list[str]]:
    """A running turn, and the ids of the messages that wait."""
    start = store.start(**fields)
    begin(store, start)
    return start, [say(store, start, text)[0]["message_id"] for text in texts]


def states(store: Store, start: TurnStart, *ids: str) -> list[str]:
    """What became of the messages."""
    with store.database.connect() as connection:
        return [inbox.find_message(connection, start.run_id, each)["state"] for each in ids]


def receipt_inbox(store: Store, start: TurnStart) -> Any:
    """``inbox`` of the turn's receipt, which is that of its end."""
    with store.database.connect() as connection:
        (receipt,) = queries.receipts(connection, start.run_id)
    assert receipt["inbox"] == data_of(store, start.run_id, "turn_cancelled")["inbox"]
    return receipt["inbox"]


@pytest.mark.parametrize("policy", ["keep", "return", "drop"])
def test_every_place_that_tells_of_a_stop_tells_what_it_did_with_the_messages(store: Store, policy: str) -> None:
    start, ids = begun(store, "one", "two")
    record = stop_record(store, start, StopOrder(STOP.cause, inbox=policy))
    expected = fates(policy, **{LISTS[policy]: ids})
    assert (record.is_stopped, record.fates) == (True, expected)
    assert states(store, start, *ids) == [STATES[LISTS[policy]]] * 2
    assert data_of(store, start.run_id, "stop_requested")["inbox"] == expected
    assert store.decide(lambda tx: read_fates(tx, start.turn_id)) == expected
    finish(store, start, "cancelled", STOP)
    assert receipt_inbox(store, start) == expected


def test_whoever_joins_is_told_what_the_first_stop_did_and_its_policy_stands(store: Store) -> None:
    start, ids = begun(store, "one")
    first = stop_record(store, start)
    for policy in ("drop", "return"):
        assert stop_record(store, start, StopOrder(STOP.cause, inbox=policy)) == first
    assert (first.fates, states(store, start, *ids)) == (fates("keep", kept=ids), ["held"])


def test_a_message_that_comes_after_the_stop_is_no_part_of_its_record(store: Store) -> None:
    start, (before,) = begun(store, "before")
    stop(store, start, StopOrder(STOP.cause, inbox="drop"))
    after = say(store, start, "after")[0]["message_id"]
    _, following = finish(store, start, "cancelled", STOP)
    assert following is not None
    assert states(store, start, before, after) == ["withdrawn", "delivered"]
    assert receipt_inbox(store, start) == fates("drop", withdrawn=[before])


def test_a_terminate_hands_back_what_waits_at_once_and_what_comes_before_the_end_too(store: Store) -> None:
    start, ids = begun(store, "one", "two")
    record = stop_record(store, start, TERMINATE)
    assert record.fates == fates("return", returned=ids)
    late = say(store, start, "late")[0]["message_id"]
    finish(store, start, "cancelled", TERMINATE)
    assert receipt_inbox(store, start) == fates("return", returned=[*ids, late])
    assert states(store, start, *ids, late) == ["returned"] * 3
    types = types_of(store, start.run_id)
    assert (types.count("message_returned"), types[-2:]) == (3, ["turn_cancelled", "run_cancelled"])
    refused(RunIsOver, lambda: stop(store, start, TERMINATE))


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_terminate_that_joins_a_stop_hands_back_what_that_had_kept(store: Store, is_recorded: bool) -> None:
    start, ids = begun(store, "one")
    stop(store, start)
    ids.append(say(store, start, "two")[0]["message_id"])
    if is_recorded:
        assert stop_record(store, start, TERMINATE).fates == fates("return", returned=ids)
    finish(store, start, "cancelled", TERMINATE)
    assert receipt_inbox(store, start) == fates("return", returned=ids)
    assert store.decide(lambda tx: read_fates(tx, start.turn_id)) == fates("return", returned=ids)
    assert states(store, start, *ids) == ["returned", "returned"]


def test_a_terminate_that_joins_a_stop_does_not_hide_what_that_had_dropped(store: Store) -> None:
    start, (dropped,) = begun(store, "one")
    stop(store, start, StopOrder(STOP.cause, inbox="drop"))
    late = say(store, start, "two")[0]["message_id"]
    record = stop_record(store, start, TERMINATE)
    assert record.fates == fates("return", returned=[late], withdrawn=[dropped])
    assert states(store, start, late, dropped) == ["returned", "withdrawn"]


def test_a_kept_message_that_its_user_has_withdrawn_meanwhile_does_not_come_back(store: Store) -> None:
    start, (one, two) = begun(store, "one", "two")
    stop(store, start)
    store.decide(lambda tx: inbox.withdraw(tx, store.run(start.run_id), one))
    finish(store, start, "cancelled", TERMINATE)
    assert receipt_inbox(store, start) == fates("return", returned=[two])
    assert states(store, start, one, two) == ["withdrawn", "returned"]


@pytest.mark.parametrize(
    "order", [StopOrder(STOP.cause, inbox=policy) for policy in LISTS] + [TERMINATE], ids=[*LISTS, "terminate"]
)
def test_a_stop_of_a_parked_run_tells_what_it_did_with_what_was_kept(store: Store, order: StopOrder) -> None:
    start, ids = begun(store, "one", "two")
    stop(store, start)
    finish(store, start, "cancelled", STOP)
    policy = "return" if order.ends_run else order.inbox
    record = stop_record(store, start, order)
    assert (record.is_stopped, record.fates) == (False, fates(policy, **{LISTS[policy]: ids}))
    assert states(store, start, *ids) == [STATES[LISTS[policy]]] * 2
    assert receipt_inbox(store, start) == fates("keep", kept=ids)  # that of the turn: this stop had none


def test_a_stop_that_only_the_turns_end_records_tells_the_same(store: Store) -> None:
    start, ids = begun(store, "one")
    finish(store, start, "cancelled", StopOrder(STOP.cause, inbox="return"))
    assert receipt_inbox(store, start) == fates("return", returned=ids)
    assert data_of(store, start.run_id, "stop_requested")["inbox"] == fates("return", returned=ids)
    types = types_of(store, start.run_id)
    assert types.index("stop_requested") < types.index("message_returned") < types.index("turn_cancelled")


def test_a_stop_before_the_turn_began_is_handed_to_it_with_what_it_did(store: Store) -> None:
    start = store.start()
    ids = [say(store, start, "one")[0]["message_id"]]
    stop(store, start, StopOrder(STOP.cause, inbox="drop"))
    order = store.decide(lambda tx: begin_turn(tx, start.run_id))
    assert order is not None
    finish(store, start, "cancelled", order)
    assert receipt_inbox(store, start) == fates("drop", withdrawn=ids)


def test_a_batch_run_that_is_lost_gives_back_what_it_was_to_go_on_with(store: Store) -> None:
    start = store.start(interactive=False)
    begin(store, start)
    for text in ("first", "second"):
        stop(store, start, StopOrder(STOP.cause, continue_with=text))
    _, second = finish(store, start, "cancelled", STOP)
    assert second is not None
    begin(store, second)
    finish(store, second, "cancelled", StopOrder(Cause(CauseWord.SHUTDOWN)))
    returned = data_of(store, start.run_id, "message_returned")
    assert returned["text"] == "second"
    assert data_of(store, start.run_id, "turn_cancelled")["inbox"] == fates("return", returned=[returned["message_id"]])
    assert store.run(start.run_id)["state"] == "failed"


def test_a_turn_that_ends_by_itself_tells_nothing_of_an_inbox(store: Store) -> None:
    start, _ = begun(store, "one")
    finish(store, start)
    assert "inbox" not in data_of(store, start.run_id, "turn_completed")
