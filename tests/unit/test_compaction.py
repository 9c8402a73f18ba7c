"""What is left out of a long history, what stands for it, and what the model is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from core.engine.recovery import settle_lost_turns
from core.errors import ProviderNonsense, ProviderRejected, TurnIsOver
from core.session import compacting
from core.session.compacting import commit
from core.session.compaction import Compaction, compacted, find_cut, read_in_force, shortened, tokens_of
from core.session.compaction_moves import start_compaction
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.stop_moves import note_stop
from core.session.summary import INSTRUCTIONS, read_summary, summary_messages
from core.session.transcript import request_messages
from core.session.turn_end import end_turn
from core.session.turns import begin_turn
from core.store.commit import Transaction
from core.store.tables import compactions
from tests.support.causes import USER
from tests.support.core_kit import ALICE, Store, open_store
from tests.support.repair_kit import called, result_of, said, user

History = list[dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        yield opened


def _talk(exchanges: int) -> History:
    """Handed in: two messages an exchange."""
    return [each for number in range(exchanges) for each in (user(f"q{number}", turn_id=None), said(f"a{number}"))]


# -- what is left out ------------------------------------------------------------------------


@pytest.mark.parametrize("exchanges", [0, 1, 2, 3])
def test_the_first_exchange_and_the_last_two_are_never_left_out(exchanges: int) -> None:
    assert find_cut(_talk(exchanges), None) is None


def test_what_stands_between_them_is() -> None:
    history = _talk(6)
    cut = find_cut(history, None)
    assert cut is not None
    assert (cut.first, cut.last, cut.older) == (2, 8, None)
    assert cut.messages == history[2:8]


def test_system_messages_do_not_count() -> None:
    system = {"role": "system", "content": "s", "turn_id": None}
    cut = find_cut([system, *_talk(4)], None)
    assert cut is not None
    assert (cut.first, cut.last) == (2, 4)
    assert cut.messages == _talk(4)[2:4]


def test_a_range_ends_before_a_turn_and_never_between_what_the_user_said_in_one() -> None:
    turn = [user("q", turn_id="t_1"), said("part", turn_id="t_1"), user("no, so", turn_id="t_1"), said("a", turn_id="t_1")]
    last = [user("q", turn_id="t_2"), said("a", turn_id="t_2")]
    cut = find_cut([*_talk(3), *turn, *last], None)
    assert cut is not None
    assert (cut.first, cut.last) == (2, 6)
    assert find_cut([*_talk(1), *turn, *last], None) is None


def test_a_first_turn_in_which_the_user_spoke_twice_is_kept_whole() -> None:
    first = [user("q", turn_id="t_0"), said("part", turn_id="t_0"), user("more", turn_id="t_0"), said("a", turn_id="t_0")]
    cut = find_cut([*first, *_talk(3)], None)
    assert cut is not None
    assert (cut.first, cut.last) == (4, 6)


def test_the_next_compaction_begins_where_the_first_did_and_its_summary_is_made_of_the_older_one() -> None:
    history = _talk(8)
    cut = find_cut(history, Compaction(2, 6, "older"))
    assert cut is not None
    assert (cut.first, cut.last, cut.older) == (2, 12, "older")
    assert cut.messages == history[6:12]
    assert find_cut(history, Compaction(2, 12, "older")) is None


# -- what is sent ----------------------------------------------------------------------------


def test_the_summary_stands_in_the_system_message_behind_what_was_handed_in_and_before_the_rest() -> None:
    history = [{"role": "system", "content": "speak softly", "turn_id": None}, *_talk(5)]
    request = request_messages("be good", shortened(history, Compaction(2, 6, "SUM")), "now", "whole", [("a", "b")])
    system, *others = request
    order = ["be good", "speak softly", "Summary of the earlier part of this conversation", "SUM", "whole", "“a”"]
    places = [system["content"].index(each) for each in order]
    assert places == sorted(places)
    assert "(4 messages were left out)" in system["content"]
    assert [each["content"] for each in others] == ["q0", "a0", "q3", "a3", "q4", "a4", "now"]
    assert all(each.keys() == {"role", "content"} for each in request)


def test_without_a_compaction_nothing_is_changed() -> None:
    history = _talk(5)
    assert shortened(history, None) is history


def test_tokens_are_estimated_by_all_that_is_sent() -> None:
    history = [user("x" * 40), said("y" * 40, called("c", "z" * 40)), result_of("c", "w" * 40)]
    assert tokens_of(history) == 40
    assert tokens_of([]) == 0


# -- what is in force ------------------------------------------------------------------------


def _put(store: Store, start: TurnStart, *ranges: tuple[int, int], undone: bool = False) -> None:
    def decide(tx: Transaction) -> None:
        for first, last in ranges:
            tx.connection.execute(
                insert(compactions).values(
                    id=f"k_{first}_{last}", session_id=start.session_id, run_id=start.run_id, first=first, last=last,
                    summary=f"{first} to {last}", created_at=1.0, undone_at=2.0 if undone else None,
                )
            )  # fmt: skip

    store.decide(decide)


def test_the_one_that_reaches_furthest_is_in_force_unless_it_was_undone_or_does_not_fit(store: Store) -> None:
    start = store.start()
    history = _talk(6)
    with store.database.connect() as connection:
        assert read_in_force(connection, start.session_id, history) is None
    _put(store, start, (2, 4), (2, 6))
    _put(store, start, (2, 8), undone=True)
    _put(store, start, (2, 7), (2, 12), (2, 99))  # not before a user's message; nothing behind it; no such message
    with store.database.connect() as connection:
        assert read_in_force(connection, start.session_id, history) == Compaction(2, 6, "2 to 6")
        assert compacted(connection, start.session_id, history) == shortened(history, Compaction(2, 6, "2 to 6"))
        assert compacted(connection, "another", history) == history
        assert read_in_force(connection, start.session_id, []) is None


# -- the fence -------------------------------------------------------------------------------


def _commit(store: Store, start: TurnStart) -> None:
    store.decide(lambda tx: commit(tx, start, Compaction(2, 6, "SUM"), {"before_tokens": 9, "after_tokens": 5}))


def _is_changed(store: Store, start: TurnStart) -> bool:
    with store.database.connect() as connection:
        is_in_force = read_in_force(connection, start.session_id, _talk(6)) is not None
    is_told = "compaction" in [event.type for event in store.events(start.run_id)]
    assert is_told == is_in_force
    return is_told


def test_a_commit_writes_the_row_and_the_event_of_its_turn_together(store: Store) -> None:
    start = store.start()
    store.decide(lambda tx: begin_turn(tx, start.run_id))
    _commit(store, start)
    assert _is_changed(store, start)
    told = json.loads(store.events(start.run_id)[-1].json)
    assert (told["turn_id"], told["messages"], told["before_tokens"]) == (start.turn_id, 4, 9)


def test_a_commit_after_a_stop_or_for_another_turn_is_refused_and_writes_nothing(store: Store) -> None:
    start = store.start()
    store.decide(lambda tx: begin_turn(tx, start.run_id))
    other = TurnStart(start.run_id, start.session_id, "t_other", "", True, {})
    with pytest.raises(TurnIsOver):
        _commit(store, other)
    store.decide(lambda tx: note_stop(tx, start.run_id, start.turn_id, StopOrder(USER)))
    with pytest.raises(TurnIsOver):
        _commit(store, start)
    assert not _is_changed(store, start)


@pytest.mark.parametrize("on_server_lost", ["park", "resume"])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_compaction_that_a_lost_server_left_is_never_taken_up_as_a_turn_of_the_user(
    store: Store, on_server_lost: str, has_begun: bool
) -> None:
    asked = store.start(on_server_lost=on_server_lost)
    store.decide(lambda tx: end_turn(tx, asked.run_id, asked.turn_id, TurnOutcome("completed", [said("a")])))
    start = store.decide(lambda tx: start_compaction(tx, ALICE, asked.run_id, asked.turn_id))[1]
    assert start.kind == "compaction"
    if has_begun:
        store.decide(lambda tx: begin_turn(tx, asked.run_id))
    following = settle_lost_turns(store.writer)
    if on_server_lost == "resume" and not has_begun:
        assert following == [start]  # nothing of it had begun
        return
    assert following == []
    assert store.run(asked.run_id)["state"] == "awaiting_input"
    ends = [json.loads(event.json) for event in store.events(asked.run_id) if event.type == "turn_cancelled"]
    assert [(end["turn_id"], end["cause"], end["messages"]) for end in ends] == [(start.turn_id, "server_lost", [])]


def test_one_that_failed_is_logged_without_the_words_of_the_model_server_which_may_quote_the_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise ProviderRejected("invalid value, got 'my salary is 54321'", 400)

    monkeypatch.setattr(compacting, "compact", refuse)
    turn: Any = SimpleNamespace(start=SimpleNamespace(turn_id="t_1"))
    history = _talk(6)
    assert compacting.fitting(turn, lambda: None, history, None, limit=1) == history  # type: ignore[arg-type,return-value]
    assert caplog.messages == ["t_1: the history was not compacted: provider_rejected"]


# -- the summary -----------------------------------------------------------------------------


def test_a_request_for_a_summary_shows_everything_and_shortens_only_what_tools_took_and_gave() -> None:
    long = "head " + "x" * 9000 + " tail"
    messages = [
        user(long),
        said("", called("c1", '{"where": "' + "y" * 9000 + '"}')),
        result_of("c1", long),
        result_of("lost", "found"),
        said("done", stopped=True),
    ]
    system, asked = summary_messages("older words", messages)
    assert system == {"role": "system", "content": INSTRUCTIONS}
    assert asked["role"] == "user"
    shown = asked["content"]
    assert shown.startswith("summary of what came before:\nolder words\n\nuser:\nhead ")
    assert long in shown
    assert shown.count(long) == 1, "the result is shortened"
    assert "assistant:\n[calls look with {" in shown
    assert "result of look:\nhead xxx" in shown
    assert "characters left out …]\n" in shown
    assert "result of a tool:\nfound" in shown
    assert shown.endswith("assistant:\ndone")
    assert len(shown) < len(long) + 3000
    assert summary_messages(None, messages)[1]["content"].startswith("user:\n")


def test_a_summary_is_what_the_model_said_and_nothing_is_none() -> None:
    assert read_summary("\n all\0 of it \n") == "all of it"
    for empty in ("", " \n\t", "\0"):
        with pytest.raises(ProviderNonsense):
            read_summary(empty)
