"""Whatever the history, compacted however often: every provider takes it, and a user message after it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.provider.provider import ModelRequest
from core.session.compaction import KEEP_LAST, Compaction, find_cut, shortened, tokens_of
from core.session.repair import repair
from core.session.summary import summary_messages
from core.session.transcript import request_messages
from tests.support.repair_kit import called, fault, result_of, said, user
from tests.support.strict_request import check_request

History = list[dict[str, Any]]


@st.composite
def _turns(draw: st.DrawFn) -> list[History]:
    """Turns, or what was handed in: questions, tool rounds with or without an answer behind them, words in between."""
    turns: list[History] = []
    for number in range(draw(st.integers(1, 9))):
        turn_id = draw(st.sampled_from([None, f"t_{number}"]))
        turn: History = [user(f"question {number}")]
        for part in range(draw(st.integers(0, 3))):
            ids = [f"c{number}.{part}.{call}" for call in range(draw(st.integers(0, 2)))]
            turn.append(said(draw(st.sampled_from(["", f"part {number}.{part}"])), *map(called, ids)))
            turn += [result_of(each, f"of {each}") for each in ids]
            if draw(st.booleans()):
                turn.append(user(f"and {number}.{part}"))
        if draw(st.booleans()):
            turn.append(said(f"answer {number}", **draw(st.sampled_from([{}, {"stopped": True, "cause": "user"}]))))
        turns.append([{**message, "turn_id": turn_id} for message in turn])
    return turns


def _check(history: History, in_force: Compaction | None) -> None:
    """What is sent of it passes, begins and ends as the history does, and has lost nothing that was not left out."""
    sent = shortened(history, in_force)
    rest = [message for message in sent if message["role"] != "system"]
    assert fault(rest) is None
    check_request(ModelRequest(request_messages("be good", sent, "next"), "m"))
    if in_force is not None:
        assert rest == history[: in_force.first] + history[in_force.last :]
        assert len(rest) == len(history) - (in_force.last - in_force.first)
        kept = history[in_force.last :]
        assert sum(message["role"] == "user" for message in kept) >= KEEP_LAST


@given(_turns(), st.lists(st.booleans(), min_size=10, max_size=10), st.booleans())
def test_a_history_that_is_compacted_as_it_grows_is_always_one_that_providers_take(
    turns: list[History], moments: list[bool], has_system: bool
) -> None:
    system = [{"role": "system", "content": "handed in", "turn_id": None}] if has_system else []
    said_so_far: History = []
    in_force: Compaction | None = None
    for turn, is_moment in zip(turns, moments, strict=False):
        # As the transcript does it: each turn's own part is repaired with all before it, and is not changed later.
        said_so_far = repair([*said_so_far, *turn])
        cut = find_cut([*system, *said_so_far], in_force) if is_moment else None
        if cut is not None:
            assert cut.first == (in_force.first if in_force else cut.first)
            assert cut.last > (in_force.last if in_force else cut.first)
            covered = said_so_far[in_force.last if in_force else cut.first : cut.last]
            assert cut.messages == covered
            check_request(ModelRequest(summary_messages(cut.older, cut.messages), "m"))
            in_force = Compaction(cut.first, cut.last, f"summary at {len(said_so_far)}")
            assert find_cut([*system, *said_so_far], in_force) is None
        _check(said_so_far, in_force)
        assert tokens_of(shortened(said_so_far, in_force)) >= 0


@given(_turns())
def test_the_newest_turn_may_be_taken_out_after_a_compaction(turns: list[History]) -> None:
    history = repair([message for turn in turns for message in turn])
    cut = find_cut(history, None)
    newest = history[-1]["turn_id"]
    if cut is not None and newest is not None:
        rest = [message for message in history if message["turn_id"] != newest]
        assert cut.last < len(rest)
        assert rest[cut.last]["role"] == "user"
        _check_rest = shortened(rest, Compaction(cut.first, cut.last, "s"))
        assert fault([message for message in _check_rest if message["role"] != "system"]) is None
