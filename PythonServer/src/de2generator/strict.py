"""The order of messages that a strict provider demands, and the names and ids that it takes."""

import json
import re
from collections.abc import Iterator
from typing import Any

from de2generator.chat_request import text_of

_SYSTEM = {"system", "developer"}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_ID = 40


def find_fault(messages: list[dict[str, Any]]) -> str | None:
    """What is wrong with the messages, or None.

    Right is: system messages first; then user and assistant in turn, a user first; every assistant
    message with tool calls directly followed by exactly one result for each call; a user or a tool
    message last. After a tool round either the assistant or a user may go on. Text is neither empty nor
    broken Unicode; tool arguments are a JSON object.
    """
    rest = list(enumerate(messages))
    while rest and rest[0][1].get("role") in _SYSTEM:
        rest.pop(0)
    if not rest:
        return "there is no user message"
    previous = "start"
    while rest:
        index, message = rest.pop(0)
        role = str(message.get("role"))
        fault = _find_order_fault(previous, role) or _find_text_fault(message)
        if not fault and message.get("tool_calls"):
            results = []
            while rest and rest[0][1].get("role") == "tool":
                results.append(rest.pop(0)[1])
            fault = _find_round_fault(message["tool_calls"], results)
            role = "tool" if results else role
        if fault:
            return f"messages[{index}]: {fault}"
        previous = role
    return "the last message is neither of user nor of tool" if previous == "assistant" else None


def find_name_fault(body: dict[str, Any]) -> str | None:
    """What is wrong with the names and ids in a request body, or None.

    Right is: names of 1 to 64 letters, digits, ``_`` and ``-``, those of the offered tools unique, the forced tool
    among them; ids of 1 to 40 characters, each in one call only.
    """
    return next(_name_faults(body), None)


def _name_faults(body: dict[str, Any]) -> Iterator[str]:
    offered = [str(tool["function"].get("name")) for tool in body.get("tools") or []]
    yield from (f"tools[{index}]: {_refused(name)}" for index, name in enumerate(offered) if not _NAME.fullmatch(name))
    if len(set(offered)) != len(offered):
        yield f"tools: names are not unique: {offered}"
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and (forced := (choice.get("function") or {}).get("name")) not in offered:
        yield f"tool_choice: there is no tool {forced!r}"
    used: set[str] = set()
    for index, message in enumerate(body["messages"]):
        for call in message.get("tool_calls") or []:
            name, call_id = str((call.get("function") or {}).get("name")), str(call.get("id") or "")
            if not _NAME.fullmatch(name):
                yield f"messages[{index}]: {_refused(name)}"
            if not 1 <= len(call_id) <= _MAX_ID or call_id in used:
                yield f"messages[{index}]: the id {call_id!r} is empty, too long, or used before"
            used.add(call_id)
        if message.get("role") == "tool" and message.get("tool_call_id") not in used:
            yield f"messages[{index}]: there is no call {message.get('tool_call_id')!r}"


def _refused(name: str) -> str:
    return f"the tool name {name[:80]!r} does not match {_NAME.pattern}"


def _find_order_fault(previous: str, role: str) -> str | None:
    if role in _SYSTEM:
        return "a system message after the first other message"
    if role == "tool":
        return "a tool result without its tool call directly before it"
    if role not in {"user", "assistant"}:
        return f"unknown role {role!r}"
    if previous == "start" and role != "user":
        return "the first message after the system messages is not the user's"
    return f"two {role} messages in a row" if previous == role else None


def _find_text_fault(message: dict[str, Any]) -> str | None:
    text = text_of(message)
    if not text.strip() and not message.get("tool_calls"):
        return f"an empty {message.get('role')} message"
    return find_unicode_fault(text)


def _find_round_fault(calls: list[dict[str, Any]], results: list[dict[str, Any]]) -> str | None:
    wanted = [str(call.get("id")) for call in calls]
    given = [str(result.get("tool_call_id")) for result in results]
    if len(set(wanted)) != len(wanted):
        return f"tool call ids are not unique: {wanted}"
    if missing := [call_id for call_id in wanted if call_id not in given]:
        return f"tool calls without a result directly after them: {missing}"
    if foreign := [call_id for call_id in given if call_id not in wanted]:
        return f"tool results without a call: {foreign}"
    if len(given) != len(wanted):
        return f"more than one result for a tool call: {given}"
    faults = [_find_arguments_fault(call) for call in calls]
    faults += [find_unicode_fault(text_of(result)) for result in results]
    return next((fault for fault in faults if fault), None)


def _find_arguments_fault(call: dict[str, Any]) -> str | None:
    arguments = (call.get("function") or {}).get("arguments")
    try:
        is_object = isinstance(json.loads(arguments or ""), dict)
    except (TypeError, ValueError):
        is_object = False
    return None if is_object else f"the arguments of {call.get('id')} are not a JSON object: {arguments!r}"


def find_unicode_fault(text: str) -> str | None:
    """What is wrong with the text's characters, or None."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text with half a surrogate pair"
    return None
