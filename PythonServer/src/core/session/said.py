"""What a turn adds to the history: made of what its goals said and did, the same from memory and from the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from core.agent.rounds import Rounds
from core.agent.told import Told, placeholder, told_messages
from core.agent.tool_batch import cancelled_text
from core.events import Event, EventType
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.tool.shell_result import Printed


@dataclass(frozen=True, slots=True)
class Said:
    """What one leaf brings."""

    goal_id: str
    rounds: Rounds
    #: The whole answer, if the goal was completed.
    result: str | None = None
    #: Why the goal itself was stopped, if it was.
    cause: str | None = None
    #: A goal of a sub-agent: what it said is for the tool call that it works for, and no part of the history.
    is_delegated: bool = False

    @property
    def text(self) -> str:
        """What it said, also when it was cut off."""
        return self.rounds.text if self.result is None else self.result


def said_by(plan: Plan | None) -> list[Said]:
    """The leaves of a plan, in plan order, delegated ones too."""
    return [] if plan is None else [_said_of(goal) for goal in plan.walk_all() if not goal.children]


def _said_of(goal: Goal) -> Said:
    result = goal.result if goal.status is GoalStatus.COMPLETED else None
    cause = goal.cause.word if goal.cause is not None else None
    return Said(goal.id, goal.rounds, result, cause, is_delegated=goal.plan.depth > 0)


def text_of(said: list[Said]) -> str:
    """What the plan's own goals have said, in plan order."""
    return "\n\n".join(text for each in said if not each.is_delegated and (text := each.text))


def with_earlier(said: list[Said], earlier: list[Said]) -> list[Said]:
    """Where a goal has said nothing itself, what it had said in the turn that was resumed: that must not be lost."""
    if not said:  # there is no plan yet
        return earlier
    before = {each.goal_id: each for each in earlier}
    return [before.get(each.goal_id, each) if each.rounds.is_empty else each for each in said]


def turn_messages(
    said: list[Said], state: str, cause: str | None, told: Sequence[Told] = ()
) -> list[dict[str, Any]]:
    """The messages behind the user's: one assistant message, or a single goal's rounds; one mark at the end.

    ``told``: what the user said while the turn was at work. In the rounds of a single goal it stands where the model
    met it; the rest comes first. No call may be open (:func:`close_calls`).
    """
    messages: list[dict[str, Any]] = []
    own = [each for each in said if not each.is_delegated]
    if len(own) == 1:
        messages = own[0].rounds.messages()
        told = [each for each in told if not own[0].rounds.has_told(each.id)]
    told = [replace(each, is_cut=each.is_cut and not _is_told_a_goal(each, said)) for each in told]
    if not any(message.get("tool_calls") or message["role"] == "user" for message in messages):
        content = text_of(said)
        messages = [{"role": "assistant", "content": content}] if content.strip() else []
    if not messages or messages[-1]["role"] == "user":  # blanks alone are no answer, and providers refuse them
        content = f"[{state} before any text]" if cause is None else placeholder(cause)
        messages.append({"role": "assistant", "content": content})
    return marked([*told_messages(told, follows_user=True), *messages], state, cause)


def _is_told_a_goal(told: Told, said: list[Said]) -> bool:
    """Then what it has cut off is that goal's, and a part of the answer: it was no silence before all of them."""
    return any(each.rounds.has_told(told.id) for each in said)


def marked(messages: list[dict[str, Any]], state: str, cause: str | None) -> list[dict[str, Any]]:
    """The same, its last assistant message marked with how the turn ended, if that was not by itself."""
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    if last is None:
        return messages
    for name in ("stopped", "cause", "failed"):
        last.pop(name, None)
    if state == "cancelled":
        last |= {"stopped": True, "cause": cause}
    elif state == "failed":
        last["failed"] = True
    return messages


def close_calls(
    said: list[Said], run_id: str, turn_id: str, cause: str, printed: Mapping[str, Printed] = MappingProxyType({}),
    stopped: Mapping[str, str] = MappingProxyType({}),
) -> list[Event]:  # fmt: skip
    """Give every open call the result that says why there is none; returns the events that record it.

    ``cause`` is the turn's, for goals that were not stopped by themselves. By call, ``printed``: what the log has of
    commands, which their results have too; ``stopped``: why, of those that were stopped alone.
    """
    closing = []
    for each in said:
        for call in each.rounds.open_calls():
            word = stopped.get(call.id) or each.cause or cause
            content = cancelled_text(word, printed[call.id].as_stopped(word) if call.id in printed else "")
            each.rounds.answer(call.id, content, is_error=True)
            data = {"content": content, "is_error": True}
            closing.append(Event(run_id, EventType.TOOL_RESULT, data, turn_id, each.goal_id, call.id))
    return closing
