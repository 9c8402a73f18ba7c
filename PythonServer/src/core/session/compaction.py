"""Compaction: what a model is sent of a long history. What was said stays, and so does the transcript.

The first exchange and the last ones are sent as they are; a summary, in the system message, stands for the messages
between them. A range always ends just before a user message that begins a turn: calls keep their results, roles
alternate, and a turn that is taken out later was no part of it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import Connection, select

from core.agent.attempt import CHARS_A_TOKEN
from core.store.tables import compactions

History = list[dict[str, Any]]

#: Exchanges at the end that are sent as they are.
KEEP_LAST: Final = 2

_HEADING: Final = "Summary of the earlier part of this conversation ({number} messages were left out):\n{summary}"


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summary that stands for the messages ``[first:last]`` of a history without its system messages."""

    first: int
    last: int
    summary: str


@dataclass(frozen=True, slots=True)
class Cut:
    """What a compaction is to leave out, beyond the one in force."""

    first: int
    last: int
    #: The summary in force, which the new one takes over.
    older: str | None
    #: The messages that it does not stand for yet.
    messages: History


def said_of(history: History) -> History:
    """The history without its system messages: what indices count in."""
    return [message for message in history if message["role"] != "system"]


def find_cut(history: History, in_force: Compaction | None) -> Cut | None:
    """What can be left out now; None if that is nothing, or nothing more."""
    said = said_of(history)
    starts = _exchanges(said)
    if len(starts) <= 1 + KEEP_LAST:
        return None
    last = starts[-KEEP_LAST]
    if in_force is None:
        return Cut(starts[1], last, None, said[starts[1] : last])
    if last <= in_force.last:
        return None
    return Cut(in_force.first, last, in_force.summary, said[in_force.last : last])


def _exchanges(said: History) -> list[int]:
    """Where each exchange begins: a turn is one, however often the user spoke in it; so is each question handed in."""
    begins = [number for number, (before, message) in enumerate(pairwise(said), 1) if _is_begin(before, message)]
    return [0, *begins] if said else []


def _is_begin(before: dict[str, Any], message: dict[str, Any]) -> bool:
    turn_id = message.get("turn_id")
    return message["role"] == "user" and (turn_id is None or turn_id != before.get("turn_id"))


# -- what is sent --------------------------------------------------------------------------


def shortened(history: History, in_force: Compaction | None) -> History:
    """The history as a model is sent it: the summary is a system message, marked ``is_summary``, behind the others."""
    if in_force is None:
        return history
    said = said_of(history)
    first, last = in_force.first, in_force.last
    content = _HEADING.format(number=last - first, summary=in_force.summary)
    summary = {"role": "system", "content": content, "turn_id": None, "is_summary": True}
    system = [message for message in history if message["role"] == "system"]
    return [*system, summary, *said[:first], *said[last:]]


def tokens_of(history: History) -> int:
    """Tokens of a history as it stands, estimated by its length."""
    return sum(map(_length, history)) // CHARS_A_TOKEN


def _length(message: dict[str, Any]) -> int:
    calls = message.get("tool_calls", ())
    return len(message["content"]) + sum(len(call["function"]["arguments"]) for call in calls)


# -- what is in force ----------------------------------------------------------------------


def compacted(connection: Connection, session_id: str, history: History) -> History:
    """The whole history of the session as a model is sent it."""
    return shortened(history, read_in_force(connection, session_id, history))


def read_in_force(connection: Connection, session_id: str, history: History) -> Compaction | None:
    """The session's newest compaction that was not undone. One that does not fit its history, since the store was
    damaged, is passed over: what was said counts.
    """
    query = select(compactions.c.first, compactions.c.last, compactions.c.summary).where(
        compactions.c.session_id == session_id, compactions.c.undone_at.is_(None)
    )
    said = said_of(history)
    # Each one reaches further than those before it; a clock may be set back.
    rows = connection.execute(query.order_by(compactions.c.last.desc()))
    return next((each for row in rows if _fits(each := Compaction(*row), said)), None)


def _fits(compaction: Compaction, said: History) -> bool:
    first, last = compaction.first, compaction.last
    return 0 < first < last < len(said) and said[first]["role"] == said[last]["role"] == "user"
