"""What the tests of the repair share: messages of a history, and the checks that hold for every repaired one."""

from __future__ import annotations

import copy
from typing import Any

from core.session.repair import NO_RESULT, repair
from de2generator.strict import find_fault

Message = dict[str, Any]


def user(text: str = "q", **more: Any) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text, **more}


def said(text: str, *calls: Message, **more: Any) -> Message:
    """A message of the assistant, with calls or without."""
    message = {"role": "assistant", "content": text, **more}
    return message | {"tool_calls": list(calls)} if calls else message


def called(call_id: Any, arguments: Any = "{}", name: str = "look") -> Message:
    """A tool call; also one that is damaged."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result_of(call_id: Any, text: str = "found", **more: Any) -> Message:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


def no_result(call_id: str) -> Message:
    """What stands in for a result that never came."""
    return result_of(call_id, NO_RESULT, is_error=True)


def fault(history: list[Message]) -> str | None:
    """What the strict model server would say to this history and a message after it."""
    return find_fault([{"role": "system", "content": "s"}, *history, user("next")])


def repaired(broken: list[Message]) -> list[Message]:
    """The repaired history, after the checks that hold for every input."""
    before = copy.deepcopy(broken)
    history = repair(broken)
    assert broken == before, "the argument was changed"
    assert fault(history) is None
    assert not history or history[-1]["role"] != "user"
    assert repair(history) == history
    return history
