"""The order and the shapes that the Anthropic Messages API demands, and a little more than it does today."""

import re
from collections.abc import Iterator
from typing import Any

from de2generator.chat_request import text_of
from de2generator.strict import find_unicode_fault

#: Members of a body, as many as a plain client may use.
_TOP = {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "temperature", "stop_sequences"}
#: Type of a block -> its members.
_BLOCKS = {
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}
_OF_ROLE = {"user": {"text", "tool_result"}, "assistant": {"text", "tool_use"}}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def find_fault(body: dict[str, Any]) -> str | None:
    """What is wrong with a request body, or None.

    Right is: a user first, user and assistant in turn, a user last; each ``tool_use`` answered by exactly one
    ``tool_result`` at the beginning of the next message; call ids unique in the request; ids and names of the
    letters that the API takes; no text blank, no broken Unicode; tools declared where there are tool blocks; no
    member that the API does not know.
    """
    return next(_faults(body), None)


def _faults(body: dict[str, Any]) -> Iterator[str]:
    yield from (f"{name}: not permitted" for name in body if name not in _TOP)
    if body.get("max_tokens", 0) < 1:
        yield "max_tokens: must be at least 1"
    if "system" in body:
        yield from _text_faults(text_of({"content": body["system"]}), "system")
    yield from _tool_faults(body.get("tools") or [], body.get("tool_choice"))
    previous, waiting, used = "", list[str](), set[str]()
    for index, message in enumerate(body["messages"]):
        place, role = f"messages.{index}", str(message.get("role"))
        blocks = _blocks_of(message)
        yield from _message_faults(message, role, previous, blocks, place)
        yield from _result_faults(waiting, blocks, place)
        waiting = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        for call_id in waiting:
            if call_id in used:
                yield f"{place}: tool_use ids must be unique: {call_id}"
            used.add(call_id)
        previous = role
    if waiting:
        yield f"tool_use without tool_result: {waiting}"
    if previous != "user":
        yield "the last message is not the user's"
    if used and not body.get("tools"):
        yield "tools: must be declared where there are tool blocks"


def _message_faults(
    message: dict[str, Any], role: str, previous: str, blocks: list[dict[str, Any]], place: str
) -> Iterator[str]:
    if role not in _OF_ROLE:
        yield f"{place}: unknown role {role!r}"
        return
    if not previous and role != "user":
        yield f"{place}: the first message is not the user's"
    if previous == role:
        yield f"{place}: two {role} messages in a row"
    if extra := set(message) - {"role", "content"}:
        yield f"{place}: not permitted: {sorted(extra)}"
    if not blocks:
        yield f"{place}: content is empty"
    for number, block in enumerate(blocks):
        yield from _block_faults(block, role, f"{place}.content.{number}")


def _block_faults(block: dict[str, Any], role: str, place: str) -> Iterator[str]:
    kind = block.get("type")
    if kind not in _OF_ROLE[role]:
        yield f"{place}: a block {kind!r} in a message of {role}"
        return
    if extra := set(block) - _BLOCKS[kind]:
        yield f"{place}: not permitted: {sorted(extra)}"
    if kind == "text":
        yield from _text_faults(str(block.get("text") or ""), place)
    elif kind == "tool_result":
        yield from _text_faults(text_of(block), f"{place}.content")
    elif kind == "tool_use":
        if not _ID.fullmatch(str(block.get("id"))):
            yield f"{place}.id: letters that are not allowed"
        if not _NAME.fullmatch(str(block.get("name"))):
            yield f"{place}.name: letters that are not allowed, or too many"
        if not isinstance(block.get("input"), dict):
            yield f"{place}.input: not an object"


def _result_faults(waiting: list[str], blocks: list[dict[str, Any]], place: str) -> Iterator[str]:
    """``waiting`` are the calls of the message before."""
    kinds = [block.get("type") for block in blocks]
    results = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
    if "tool_result" in kinds[len(results) :]:
        yield f"{place}: a tool_result after other content"
    if missing := [call_id for call_id in waiting if call_id not in results]:
        yield f"{place}: tool_use without tool_result directly after it: {missing}"
    if foreign := [call_id for call_id in results if call_id not in waiting]:
        yield f"{place}: tool_result without tool_use directly before it: {foreign}"
    if len(set(results)) != len(results):
        yield f"{place}: more than one tool_result for a tool_use: {results}"


def _tool_faults(tools: list[dict[str, Any]], choice: Any) -> Iterator[str]:
    names = [str(tool.get("name")) for tool in tools]
    if len(set(names)) != len(names):
        yield f"tools: names must be unique: {names}"
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(names[index]):
            yield f"tools.{index}.name: letters that are not allowed, or too many"
        if (tool.get("input_schema") or {}).get("type") != "object":
            yield f"tools.{index}.input_schema: its type is not object"
        if extra := set(tool) - {"name", "description", "input_schema"}:
            yield f"tools.{index}: not permitted: {sorted(extra)}"
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in {"auto", "any", "tool", "none"}:
        yield f"tool_choice: unknown type {kind!r}"
    elif not tools:
        yield "tool_choice: there are no tools"
    elif kind == "tool" and choice.get("name") not in names:
        yield f"tool_choice: no tool {choice.get('name')!r}"


def _blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text_faults(text: str, place: str) -> Iterator[str]:
    if not text.strip():
        yield f"{place}: text must not be blank"
    if fault := find_unicode_fault(text):
        yield f"{place}: {fault}"
