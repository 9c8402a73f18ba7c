"""The transcript: derived from the log, and always valid for the provider.

The session's history holds, for each turn, the user's message and then what the turn said: one assistant message, or
the tool rounds of a single goal. What a stop cut off stays, marked ``stopped``; where nothing was said, a placeholder
stands between the two user messages, which are never merged. A turn that was rolled back, or taken up again by a
later one, is left out; it stays in the log. A history that is broken, because it was handed in so or because the
store was damaged, is repaired whenever it is read.
"""

import json
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, and_, select

from core.cancellation import CauseWord
from core.plan.goal import Goal
from core.session.queries import read_event_data
from core.session.repair import repair
from core.store.tables import events, turns

_STOP_NOTE: Final = (
    "The previous answer in this conversation was stopped{cause} before it was complete. "
    "Do not take that work up again unless the user asks for it."
)
_EARLIER: Final = "Instructions that came with the earlier conversation:\n"


# -- reading -------------------------------------------------------------------------------


def read_transcript(connection: Connection, session_id: str, before: str | None = None) -> list[dict[str, Any]]:
    """The session's messages, oldest first: ``{role, content, turn_id, …}``; up to the turn ``before``, excluded.

    System messages that were handed in come first; ``turn_id`` is null in what was handed in.
    """
    ended = and_(events.c.run_id == turns.c.run_id, events.c.seq == turns.c.end_seq)
    query = (
        select(
            turns.c.id, turns.c.run_id, turns.c.input, turns.c.state, turns.c.left_out, turns.c.history_seq, events.c.data
        )
        .join_from(turns, events, ended, isouter=True)
        .where(turns.c.session_id == session_id)
        .order_by(turns.c.number)
    )
    system: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    asked: list[dict[str, Any]] = []
    for turn in connection.execute(query).mappings():
        if turn["history_seq"] is not None:
            handed_in = _handed_in(connection, turn)
            system += [{"role": "system", "content": text, "turn_id": None} for text in handed_in["system"]]
            said += [{**message, "turn_id": None} for message in handed_in["messages"]]
        if turn["id"] == before:
            break
        if turn["left_out"] is not None:
            continue
        if turn["state"] == "open":
            asked.append(_asked(turn))
        else:
            said += [_asked(turn), *_said(turn)]
    return [*system, *repair(said), *asked]


def _handed_in(connection: Connection, turn: RowMapping) -> dict[str, Any]:
    data = read_event_data(connection, turn["run_id"], turn["history_seq"])
    return {"system": data.get("system", []), "messages": data["messages"]}


def _asked(turn: RowMapping) -> dict[str, Any]:
    return {"role": "user", "content": turn["input"], "turn_id": turn["id"]}


def _said(turn: RowMapping) -> list[dict[str, Any]]:
    if turn["data"] is None:
        return []
    return [{**message, "turn_id": turn["id"]} for message in json.loads(turn["data"])["messages"]]


# -- asking --------------------------------------------------------------------------------


def request_messages(
    instructions: str, history: list[dict[str, Any]], prompt: str,
    message: str | None = None, results: list[tuple[str, str]] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A goal's request: system, the earlier turns, and the prompt verbatim as the last user message.

    ``message`` is the user's current message where the plan has several goals; ``results`` are ``(title, text)``
    of the goals that this one depends on.
    """
    parts = [instructions] if instructions else []
    parts += [_of_system(each) for each in history if each["role"] == "system"]
    if message is not None:
        parts.append(f"This is one part of a larger request by the user:\n{message}")
    for title, text in results or ():
        parts.append(f"Result of “{title}”:\n{text}")
    stopped = _stop_to_tell(history)
    if stopped is not None:
        parts.append(_STOP_NOTE.format(cause=_by_whom(stopped.get("cause"))))
    said = [_bare(each) for each in history if each["role"] != "system"]
    system = [{"role": "system", "content": "\n\n".join(parts)}] if parts else []
    return [*system, *said, {"role": "user", "content": prompt}]


def _of_system(message: dict[str, Any]) -> str:
    """What a system message of the history, handed in or a summary, says in the request's own."""
    text: str = message["content"]
    return text if message.get("is_summary") else _EARLIER + text


#: What of a message goes to a provider; the rest is for our own readers.
_SENT: Final = ("role", "content", "tool_calls", "tool_call_id", "is_error")


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in _SENT if name in message}


def _stop_to_tell(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest answer, if it was stopped. One that failed has told the model nothing; the one before it counts."""
    for message in reversed(history):
        if message["role"] == "assistant" and not message.get("failed"):
            return message if message.get("stopped") else None
    return None


def _by_whom(cause: str | None) -> str:
    if cause is None:  # the mark is damaged; what counts is that it was stopped
        return ""
    return " (by the user)" if cause == CauseWord.USER else f" ({cause})"


def results_for(goal: Goal) -> list[tuple[str, str]]:
    """``(title, text)`` of every leaf that the goal, or a goal around it, depends on, in order and once."""
    found: dict[str, tuple[str, str]] = {}
    around: Goal | None = goal
    while around is not None:
        for dependency in around.depends_on:
            waiting = [dependency]
            while waiting:
                each = waiting.pop()
                waiting.extend(reversed(each.children))
                if not each.children and each.result:
                    found[each.id] = (each.title, each.result)
        around = around.parent
    return list(found.values())
