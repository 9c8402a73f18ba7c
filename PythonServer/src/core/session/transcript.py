"""The transcript: derived from the log, and always valid for the provider.

The session's history holds, for each turn, the user's message and then one assistant message; roles alternate.
What a stop cut off stays, marked ``stopped``; where nothing was said, a placeholder stands between the two user
messages, which are never merged.
"""

import json
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, and_, select

from core.cancellation import CauseWord
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.store.tables import events, turns

_STOP_NOTE: Final = (
    "The previous answer in this conversation was stopped ({cause}) before it was complete. "
    "Do not take that work up again unless the user asks for it."
)


# -- reading -------------------------------------------------------------------------------


def read_transcript(connection: Connection, session_id: str, before: str | None = None) -> list[dict[str, Any]]:
    """The session's messages, oldest first: ``{role, content, turn_id, …}``; up to the turn ``before``, excluded."""
    ended = and_(events.c.run_id == turns.c.run_id, events.c.seq == turns.c.end_seq)
    query = (
        select(turns.c.id, turns.c.input, turns.c.state, events.c.data)
        .join_from(turns, events, ended, isouter=True)
        .where(turns.c.session_id == session_id)
        .order_by(turns.c.number)
    )
    said: list[dict[str, Any]] = []
    for turn in connection.execute(query).mappings():
        if turn["id"] == before:
            break
        said.extend(_messages_of(turn))
    return said


def _messages_of(turn: RowMapping) -> list[dict[str, Any]]:
    user = {"role": "user", "content": turn["input"], "turn_id": turn["id"]}
    if turn["data"] is None:
        return [user]
    added = json.loads(turn["data"])["messages"]
    return [user, *({**message, "turn_id": turn["id"]} for message in added)]


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
    if message is not None:
        parts.append(f"This is one part of a larger request by the user:\n{message}")
    for title, text in results or ():
        parts.append(f"Result of “{title}”:\n{text}")
    stopped = _stop_to_tell(history)
    if stopped is not None:
        parts.append(_STOP_NOTE.format(cause=_by_whom(stopped["cause"])))
    said = [{"role": each["role"], "content": each["content"]} for each in history]
    system = [{"role": "system", "content": "\n\n".join(parts)}] if parts else []
    return [*system, *said, {"role": "user", "content": prompt}]


def _stop_to_tell(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest answer, if it was stopped. One that failed has told the model nothing; the one before it counts."""
    for message in reversed(history):
        if message["role"] == "assistant" and not message.get("failed"):
            return message if message.get("stopped") else None
    return None


def _by_whom(cause: str) -> str:
    return "by the user" if cause == CauseWord.USER else cause


# -- writing -------------------------------------------------------------------------------


def assistant_message(plan: Plan | None, state: str, cause: str | None) -> dict[str, Any]:
    """The one message that a turn adds: its goals' texts in plan order, whole or as far as they came."""
    said = [] if plan is None else [text for goal in plan.leaves() if (text := text_of(goal))]
    return compose_message(said, state, cause)


def compose_message(said: list[str], state: str, cause: str | None) -> dict[str, Any]:
    """As :func:`assistant_message`, from the texts themselves."""
    content = "\n\n".join(said)
    if not content.strip():  # blanks alone are no answer, and providers refuse them
        content = f"[{state} before any text]" if cause is None else placeholder(cause)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if state == "cancelled":
        message |= {"stopped": True, "cause": cause}
    elif state == "failed":
        message["failed"] = True
    return message


def placeholder(cause: str) -> str:
    """What stands for an assistant message when a stop came before any text."""
    return f"[stopped{' ' + _by_whom(cause) if cause == CauseWord.USER else ': ' + cause} before any text]"


def text_of(goal: Goal) -> str:
    """What a goal said, also when it was cut off."""
    if goal.status is GoalStatus.COMPLETED and goal.result is not None:
        return goal.result
    return "".join(goal.text)


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
