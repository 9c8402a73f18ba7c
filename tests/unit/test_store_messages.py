"""Messages to a run over a store: started, queued, kept at a stop, handed back. Each is one decision."""

from __future__ import annotations

import json

import pytest

from core.cancellation import Cause, CauseWord
from core.errors import NotFound, NotInteractive, QueueFull, RunIsOver, TurnIsOver
from core.session.inbox import MAX_WAITING
from core.session.records import StopOrder, TurnStart
from tests.support.api_client import in_threads
from tests.support.core_kit import BOB, Store
from tests.support.store_moves_kit import STOP, TERMINATE, begin, data_of, finish, refused, say, stop, types_of, waiting

pytestmark = pytest.mark.usefixtures("store_url")  # on both databases

ENDS = ("turn_completed", "turn_cancelled", "turn_failed")


def test_a_message_to_a_parked_run_starts_a_turn(store: Store) -> None:
    start = store.start()
    begin(store, start)
    finish(store, start)
    before = len(store.events(start.run_id))
    answer, second = say(store, start, "next")
    assert second is not None
    assert answer == {"message_id": answer["message_id"], "disposition": "started", "turn_id": second.turn_id}
    assert (second.input, store.run(start.run_id)["state"]) == ("next", "queued")
    assert types_of(store, start.run_id, before) == ["turn_started", "message_delivered"]


def test_messages_to_a_running_turn_wait_and_start_the_next_turns_in_order(store: Store) -> None:
    start = store.start()
    begin(store, start)
    for text in ("one", "two"):
        answer, nothing = say(store, start, text)
        assert (answer["disposition"], nothing) == ("queued", None)
    current: TurnStart | None = start
    inputs = []
    while current is not None:
        inputs.append(current.input)
        _, current = finish(store, current)
        if current is not None:
            begin(store, current)
    assert inputs == ["hello", "one", "two"]
    assert store.run(start.run_id)["state"] == "awaiting_input"
    assert waiting(store, start) == []
    assert types_of(store, start.run_id).count("message_delivered") == 2


def test_a_message_is_taken_once_by_its_client_id(store: Store) -> None:
    start = store.start()
    begin(store, start)
    first, _ = say(store, start, "one", client_id="c1")
    again, nothing = say(store, start, "one", client_id="c1")
    assert (again["disposition"], again["message_id"], nothing) == ("duplicate", first["message_id"], None)
    finish(store, start)
    delivered, _ = say(store, start, "one", client_id="c1")
    assert delivered["turn_id"] == store.run(start.run_id)["turn_id"]
    told = in_threads(6, lambda _: say(store, start, "two", client_id="c2")[0]["disposition"])
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
    begin(store, start)
    for text in ("one", "two"):
        say(store, start, text)
    before = len(store.events(start.run_id))
    stop(store, start, StopOrder(STOP.cause, inbox=policy))
    assert waiting(store, start) == left
    assert types_of(store, start.run_id, before) == ["stop_requested"] + ([event] * 2 if event else [])
    _, following = finish(store, start, "cancelled", STOP)
    assert following is None
    assert store.run(start.run_id)["state"] == "awaiting_input"
    assert waiting(store, start) == left


def test_what_was_kept_at_a_stop_goes_before_the_next_message(store: Store) -> None:
    start = store.start()
    begin(store, start)
    say(store, start, "kept")
    stop(store, start)
    finish(store, start, "cancelled", STOP)
    answer, second = say(store, start, "next")
    assert second is not None
    assert (second.input, answer["disposition"]) == ("kept", "queued")
    begin(store, second)
    _, third = finish(store, second)
    assert third is not None
    assert third.input == "next"


def test_a_message_during_the_stop_starts_the_next_turn_and_what_was_kept_goes_before_it(store: Store) -> None:
    start = store.start()
    begin(store, start)
    say(store, start, "kept")
    stop(store, start)
    answer, nothing = say(store, start, "during")
    assert (answer["disposition"], nothing) == ("queued", None)
    _, second = finish(store, start, "cancelled", STOP)
    assert second is not None
    assert second.input == "kept"
    begin(store, second)
    _, third = finish(store, second)
    assert third is not None
    assert third.input == "during"


def test_the_end_of_a_run_hands_everything_back(store: Store) -> None:
    start = store.start()
    begin(store, start)
    say(store, start, "held")
    stop(store, start)
    say(store, start, "queued")
    stop(store, start, TERMINATE)
    finish(store, start, "cancelled", TERMINATE)
    assert waiting(store, start) == []
    types = types_of(store, start.run_id)
    assert types.count("message_returned") == 2
    assert types[-1] == "run_cancelled"
    assert data_of(store, start.run_id, "message_returned")["text"] == "queued"


def test_a_shutdown_leaves_what_waits_for_the_next_server(store: Store) -> None:
    start = store.start()
    begin(store, start)
    say(store, start, "later")
    _, following = finish(store, start, "cancelled", StopOrder(Cause(CauseWord.SHUTDOWN)))
    assert following is None
    assert [text for text, _ in waiting(store, start)] == ["later"]


def test_a_batch_run_that_a_shutdown_ends_has_failed(store: Store) -> None:
    start = store.start(interactive=False)
    begin(store, start)
    finish(store, start, "cancelled", StopOrder(Cause(CauseWord.SHUTDOWN)))
    assert store.run(start.run_id)["state"] == "failed"
    assert data_of(store, start.run_id, "run_failed")["cause"] == "shutdown"


def test_more_than_so_many_waiting_messages_are_refused_with_a_time_to_come_back(store: Store) -> None:
    start = store.start()
    begin(store, start)
    for n in range(MAX_WAITING):
        say(store, start, str(n))
    error = refused(QueueFull, lambda: say(store, start, "one more"))
    assert int(error.headers["Retry-After"]) > 0
    assert len(waiting(store, start)) == MAX_WAITING


def test_messages_are_refused_in_the_order_of_the_contract(store: Store) -> None:
    start = store.start()
    begin(store, start)
    refused(NotFound, lambda: say(store, start, "x", caller=BOB))
    refused(TurnIsOver, lambda: say(store, start, "x", if_turn="t_other"))
    assert say(store, start, "x", if_turn=start.turn_id)[0]["disposition"] == "queued"
    batch = store.start(session_id="s2", interactive=False)
    refused(TurnIsOver, lambda: say(store, batch, "x", if_turn="t_other"))
    refused(NotInteractive, lambda: say(store, batch, "x"))
    begin(store, batch)
    finish(store, batch)
    refused(RunIsOver, lambda: say(store, batch, "x", if_turn="t_other"))


def test_a_message_for_one_turn_is_taken_while_that_is_open_and_refused_once_it_has_ended(store: Store) -> None:
    start = store.start()
    begin(store, start)
    stop(store, start)
    assert say(store, start, "x", if_turn=start.turn_id, client_id="c1")[0]["disposition"] == "queued"
    _, second = finish(store, start)
    assert second is not None
    begin(store, second)
    finish(store, second)
    for turn_id in (start.turn_id, second.turn_id):
        refused(TurnIsOver, lambda turn_id=turn_id: say(store, start, "y", if_turn=turn_id))
    assert store.run(start.run_id)["state"] == "awaiting_input"
    assert say(store, start, "x", if_turn=start.turn_id, client_id="c1")[0]["disposition"] == "duplicate"


def test_every_turn_has_exactly_one_end_and_nothing_of_it_follows(store: Store) -> None:
    start = store.start()
    current: TurnStart | None = start
    for text in ("a", "b", "c"):
        say(store, start, text)
    steps = 0
    while current is not None:
        begin(store, current)
        if steps % 2:
            stop(store, current, StopOrder(STOP.cause, inbox="keep"))
            say(store, start, f"more{steps}") if steps < 6 else None
        _, current = finish(store, current)
        steps += 1
    stored = [json.loads(each.json) for each in store.events(start.run_id)]
    turn_ids = {each["turn_id"] for each in stored if "turn_id" in each}
    assert len(turn_ids) == steps
    for turn_id in turn_ids:
        mine = [each["type"] for each in stored if each.get("turn_id") == turn_id]
        assert sum(each in ENDS for each in mine) == 1
        assert mine[-1] in ENDS
