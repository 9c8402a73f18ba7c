"""Letters that are put into another order while they wait: they go in as the user was told, whatever else happens."""

from __future__ import annotations

from typing import Any

import pytest

from core.call import Outcome
from core.cancellation import Cancelled
from core.errors import StoreError
from core.session import mail as mail_module
from tests.support.mail_kit import Bench
from tests.support.race_kit import USER, Later
from tests.support.servers import gate, wait_until


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """In place of the rows there is the bench's log."""
    monkeypatch.setattr(
        mail_module, "deliver", lambda bench, _run, _turn, letter, places: bench.deliver(letter, places)
    )
    return Bench()


def moved(*names: str) -> list[dict[str, Any]]:
    """What waits, in the order that the writer has decided."""
    return [{"message_id": each} for each in names]


def test_letters_go_in_in_the_order_into_which_they_were_put_and_what_comes_later_behind_them(bench: Bench) -> None:
    bench.join("a")
    for _ in range(3):
        bench.send("steer")
    assert bench.mail.move(lambda: moved("m3", "m1", "m2")) == moved("m3", "m1", "m2")
    bench.send("steer")
    bench.begin("a")
    assert bench.heard("a") == ["text 3\n\ntext 1\n\ntext 2\n\ntext 4"]


def test_nothing_is_delivered_while_the_order_is_being_decided(bench: Bench) -> None:
    bench.join("a")
    for _ in range(2):
        bench.send("steer")
    with gate("mail.moved") as decided, gate("mail.waits_for_move") as waits:
        moving = Later(lambda: bench.mail.move(lambda: moved("m2", "m1")))
        decided.wait_reached()  # it is durable, and not in force here
        asking = Later(lambda: bench.begin("a"))
        waits.wait_reached()
        bench.send("steer")  # recorded behind it
        assert bench.log == []
        waits.open()
        decided.open()
        assert moving.result() == moved("m2", "m1")
        asking.result()
    assert bench.heard("a") == ["text 2\n\ntext 1\n\ntext 3"]


def test_a_request_for_which_nothing_waits_does_not_wait_for_an_order(bench: Bench) -> None:
    bench.join("a")
    bench.send("steer", "b")
    bench.mail.move(lambda: bench.begin("a") or moved("m1"))  # type: ignore[func-returns-value]
    assert "a" in bench.calls


def test_a_stop_wakes_who_waits_for_an_order(bench: Bench) -> None:
    bench.join("a")
    bench.send("steer")
    scope = bench.goals["a"].scope
    assert scope is not None
    with gate("mail.moved") as decided, gate("mail.waits_for_move") as waits:
        moving = Later(lambda: bench.mail.move(lambda: moved("m1")))
        decided.wait_reached()
        asking = Later(lambda: bench.begin("a"))
        waits.wait_reached()
        waits.open()
        scope.cancel(USER)
        with pytest.raises(Cancelled):
            asking.result()
        decided.open()
        moving.result()
    assert bench.log == []


def test_an_order_that_the_store_did_not_take_changes_nothing_and_lets_the_next_request_go(bench: Bench) -> None:
    bench.join("a")
    for _ in range(2):
        bench.send("steer")

    def refuse() -> list[dict[str, Any]]:
        raise StoreError

    with pytest.raises(StoreError):
        bench.mail.move(refuse)
    bench.begin("a")
    assert bench.heard("a") == ["text 1\n\ntext 2"]


def test_the_newest_of_two_orders_is_the_one_by_which_letters_go_in(bench: Bench) -> None:
    bench.join("a")
    for _ in range(3):
        bench.send("steer")
    with gate("mail.moved") as decided:
        one = Later(lambda: bench.mail.move(lambda: moved("m3", "m1", "m2")))
        decided.wait_reached()
        other = Later(lambda: bench.mail.move(lambda: moved("m3", "m2", "m1")))
        decided.open()
        for each in (one, other):
            each.result()
    bench.begin("a")
    assert bench.heard("a") == ["text 3\n\ntext 2\n\ntext 1"]


def test_a_letter_that_was_moved_before_it_came_here_goes_in_where_it_was_put(bench: Bench) -> None:
    bench.join("a")
    bench.send("steer")
    bench.mail.move(lambda: moved("m2", "m1"))
    bench.send("steer")
    bench.begin("a")
    assert bench.heard("a") == ["text 2\n\ntext 1"]


def test_a_delivery_that_came_to_nothing_is_tried_again_in_the_order_of_now(bench: Bench) -> None:
    bench.join("a")
    for _ in range(2):
        bench.send("steer")
    bench.pending = []
    asking = Later(lambda: bench.begin("a"))
    wait_until(lambda: len(bench.pending or ()) == 2, "the deliveries")
    bench.mail.move(lambda: moved("m2", "m1"))  # the writer has met both, and the store has not taken them
    for future in bench.pending:
        future.set_exception(StoreError())
    asking.result()
    bench.pending = None
    bench.end("a", Outcome.FAILED)
    bench.begin("a")
    assert bench.heard("a") == ["text 2\n\ntext 1"]
