"""An exported session is read again, and exported once more it is the same, whatever happened in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.cancellation import Cause, CauseWord
from core.errors import InvalidRequest, ProviderError
from core.plan.goal import Goal
from core.session import portable
from core.session.access import find_session
from core.session.arrival import Arrival
from core.session.foreign import MAX_CALL_ID, read_history
from core.session.going_back import resume, roll_back
from core.session.portable import read_lines, session_lines
from core.session.records import StopOrder, TurnStart
from core.session.repair import repair
from core.session.transcript import read_transcript
from core.session.turn import Turn
from tests.support.api_client import PATIENCE_S
from tests.support.core_kit import ALICE, Store, Turns, open_store, send
from tests.support.core_plans import specs
from tests.support.portable import Lines, comparable, session_line, turn_line

_numbers = itertools.count(1)
STOP = StopOrder(Cause(CauseWord.USER, "enough"))
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
_ids = st.text("ab", min_size=1, max_size=2) | st.just("c" * 300)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("store")) as opened:
        yield opened


def _export(store: Store, session_id: str) -> Lines:
    with store.database.connect() as connection:
        session = find_session(connection, ALICE, session_id)
        assert session is not None
        return [json.loads(json.dumps(line)) for line in session_lines(connection, session)]


def _copy(store: Store, lines: Lines, session_id: str) -> Lines:
    """The export of what was taken in."""
    store.decide(lambda tx: Arrival(session_id, read_lines(lines)).take_in(tx, ALICE))
    return _export(store, session_id)


class _Talk:
    """A session with random turns."""

    def __init__(self, store: Store, session_id: str, data: st.DataObject) -> None:
        self.store, self.session_id, self.data = store, session_id, data
        self.turns = Turns(store, self._work)
        self.ways: dict[str, str] = {}

    def _work(self, turn: Turn, goal: Goal) -> str:
        way = self.ways[turn.start.turn_id]
        turn.say(goal, f"{goal.id} says")
        if way == "stopped" or (way == "mixed" and goal.id == "g1"):
            turn.stop(STOP)
        if way == "failed" or (way == "mixed" and goal.id == "g0"):
            raise ProviderError("the model is down")
        return f"{goal.id} says this"

    def run(self, start: TurnStart) -> None:
        """One turn, to its end."""
        self.ways[start.turn_id] = self.data.draw(st.sampled_from(["completed", "stopped", "failed", "mixed"]))
        turn = self.turns.launch(start)
        turn.ended.result(PATIENCE_S)
        assert self.turns.engine.wait_parked(PATIENCE_S)

    def begin(self, plan: dict[str, Any] | None) -> TurnStart:
        """A run, perhaps with an earlier conversation."""
        call = st.fixed_dictionaries({"id": _ids, "function": st.just({"name": "look", "arguments": "{}"})})
        roles = st.sampled_from(["user", "assistant", "tool"])
        message = st.fixed_dictionaries(
            {"role": roles, "content": _texts}, optional={"tool_calls": st.lists(call, max_size=2), "tool_call_id": _ids}
        )
        given_messages = self.data.draw(st.none() | st.lists(message, max_size=5))
        history = None if given_messages is None else {"system": ["be kind"], "messages": repair(given_messages)}
        return self.store.start(session_id=self.session_id, plan=plan, history=history)

    def go_back(self, run_id: str) -> None:
        """Take the newest turn out, or up again, if that may be."""
        way = self.data.draw(st.sampled_from(["on", "rollback", "resume"]))
        last = _export(self.store, self.session_id)[-1]
        if way == "on" or last["state"] == "completed":
            return
        if way == "rollback":
            self.store.decide(lambda tx: roll_back(tx, ALICE, run_id, None))
        else:
            self.run(self.store.decide(lambda tx: resume(tx, ALICE, run_id, None))[1])

    def say(self, run_id: str) -> TurnStart:
        """The next message."""
        start = self.store.decide(lambda tx: send(tx, run_id, "and then?"))[1]
        assert start is not None
        return start


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=st.none() | specs(4), count=st.integers(0, 3), waiting=st.none() | st.integers(0, 2), data=st.data())
def test_a_session_that_was_taken_in_is_exported_as_it_came(
    shared: Store, spec: Any, count: int, waiting: int | None, data: st.DataObject
) -> None:
    session_id = f"s{next(_numbers)}"
    talk = _Talk(shared, session_id, data)
    start = talk.begin(spec.model_dump(exclude_defaults=True) if spec else None)
    run_id = start.run_id
    talk.run(start)
    for _ in range(count):
        talk.go_back(run_id)
        talk.run(talk.say(run_id))
    if waiting is not None:  # a turn is open, and messages wait for its end
        talk.say(run_id)
    for _ in range(waiting or 0):
        shared.decide(lambda tx: send(tx, run_id, "later"))

    lines = _export(shared, session_id)
    once = _copy(shared, lines, f"{session_id}-once")
    twice = _copy(shared, once, f"{session_id}-twice")

    assert comparable(twice) == comparable(once)
    if waiting is None:
        assert comparable(once) == comparable(lines)
        with shared.database.connect() as connection:
            ours, theirs = (read_transcript(connection, each) for each in (session_id, f"{session_id}-once"))
        assert [each["content"] for each in theirs] == [each["content"] for each in ours]


def test_the_longest_id_that_may_be_handed_in_is_read_also_where_it_came_twice(tmp_path: Path) -> None:
    block = {"type": "tool_use", "id": "a" * MAX_CALL_ID, "name": "look", "input": {}}
    messages, _ = read_history([{"role": "user", "content": "q"}, {"role": "assistant", "content": [block, block]}])
    with open_store(tmp_path) as store:
        start = store.start(history={"system": [], "messages": repair(messages)})
        lines = _export(store, start.session_id)
        assert comparable(_copy(store, lines, "copy"))[1]["history"] == lines[1]["history"]


def test_what_an_older_server_exported_is_still_read(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        start = store.start()
        lines = _export(store, start.session_id)
        assert comparable(lines)[1]["spec"] is None
        for name in ("resumes", "spec"):
            del lines[1][name]
        assert read_lines(lines)[1][0].resumes is None


@pytest.mark.parametrize(("count", "told"), [(portable.MAX_TURNS + 1, 0), (1, portable.MAX_TOLD + 1)])
def test_more_than_an_import_may_hold_is_refused_with_the_limit(count: int, told: int) -> None:
    word = {"role": "user", "content": "and hurry"}
    lines = [session_line("s"), *(turn_line(f"t{number}", messages=[word] * told) for number in range(count))]
    with pytest.raises(InvalidRequest, match=r"^10,001 .*at most 10,000 ") as refused:
        read_lines(lines)
    assert refused.value.extra["errors"][0]["field"] == "lines"


def test_as_much_as_an_import_may_hold_is_read() -> None:
    word = {"role": "user", "content": "and hurry"}
    lines = [session_line("s"), *(turn_line(f"t{number}", messages=[word]) for number in range(portable.MAX_TURNS))]
    assert len(read_lines(lines)[1]) == portable.MAX_TURNS
