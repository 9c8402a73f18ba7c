"""A call and what became of it; the book of open calls."""

import time

import pytest

from core.call import Call, CallBook, CallKind, Outcome
from core.cancellation import Level, Scope
from tests.support.api_client import in_threads


@pytest.fixture
def scope() -> Scope:
    return Scope.root().open(Level.CALL, "c")


def test_the_first_outcome_stands_and_each_note_is_told_whether_it_was_that(scope: Scope) -> None:
    call = Call(CallKind.TOOL, scope, "a")
    assert call.outcome is None
    assert call.settle(Outcome.ABORTED, "socket shut")
    assert not call.settle(Outcome.ALREADY_DONE, "it had finished")
    assert call.outcome is Outcome.ABORTED
    assert call.item(time.monotonic())["how"] == "socket shut"


def test_of_many_notes_at_once_exactly_one_stands(scope: Scope) -> None:
    outcomes = list(Outcome)
    for _ in range(50):
        call = Call(CallKind.TOOL, scope, None)

        def settle(n: int, call: Call = call) -> bool:
            return call.settle(outcomes[n], outcomes[n].value, str(n))

        told = in_threads(len(outcomes), settle)
        assert told.count(True) == 1
        item = call.item(0.0)
        assert item["outcome"] is outcomes[told.index(True)]
        assert item["how"] == item["outcome"]
        assert item["detail"] == str(told.index(True))


def test_a_receipt_item_has_the_fixed_members_and_a_detail_only_where_there_is_one(scope: Scope) -> None:
    call = Call(CallKind.MODEL_CALL, scope, "a", "c_1")
    open_item = {"kind": "model_call", "id": "c_1", "goal_id": "a", "outcome": None, "how": None, "took_ms": None}
    assert call.item(time.monotonic()) == open_item
    stopped_at = time.monotonic()
    call.settle(Outcome.FAILED, "it failed", "no route to the model")
    item = call.item(stopped_at)
    assert item["detail"] == "no route to the model"
    assert 0 <= item["took_ms"] < 10_000


def test_a_call_that_was_settled_before_the_stop_took_no_time(scope: Scope) -> None:
    call = Call(CallKind.WAIT, scope, None)
    call.settle(Outcome.ALREADY_DONE, "it was over")
    assert call.item(time.monotonic() + 5)["took_ms"] == 0


def test_calls_get_ids_of_their_own_unless_one_is_given(scope: Scope) -> None:
    ids = {Call(CallKind.TOOL, scope, None).id for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(each.startswith("c_") for each in ids)


def test_the_book_holds_what_is_open_oldest_first(scope: Scope) -> None:
    book = CallBook()
    calls = [Call(CallKind.TOOL, scope, None) for _ in range(3)]
    for call in calls:
        book.add(call)
    assert book.snapshot() == calls
    assert len(book) == 3
    book.remove(calls[1])
    assert calls[1].ended.is_set()
    assert not calls[0].ended.is_set()
    assert book.snapshot() == [calls[0], calls[2]]


def test_removing_a_call_again_or_one_that_was_never_in_the_book_is_harmless(scope: Scope) -> None:
    book = CallBook()
    call = Call(CallKind.TOOL, scope, None)
    book.remove(call)
    book.add(call)
    book.remove(call)
    book.remove(call)
    assert len(book) == 0


def test_a_snapshot_does_not_change_afterwards(scope: Scope) -> None:
    book = CallBook()
    call = Call(CallKind.TOOL, scope, None)
    book.add(call)
    taken = book.snapshot()
    book.remove(call)
    assert taken == [call]


def test_threads_that_add_and_remove_at_once_leave_an_empty_book(scope: Scope) -> None:
    book = CallBook()

    def work(_: int) -> None:
        for _ in range(300):
            call = Call(CallKind.TOOL, scope, None)
            book.add(call)
            assert call in book.snapshot()
            book.remove(call)

    in_threads(8, work)
    assert len(book) == 0
