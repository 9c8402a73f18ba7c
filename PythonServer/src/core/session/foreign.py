"""Reading a conversation that was held elsewhere, in the form of OpenAI's or of Anthropic's messages.

Sources: the OpenAI API reference for chat completions (text parts, ``tool_calls``, and ``function_call`` with the
role ``function`` of before), the Anthropic API reference for messages (content blocks). A list may mix them.
Only the shape is checked here; what is out of order is for :func:`core.session.repair.repair`.
"""

import json
from typing import Any, Final, NoReturn

from core.errors import InvalidRequest
from core.surrogates import whole_text

Message = dict[str, Any]

MAX_MESSAGES: Final = 10_000
#: Characters of a call's id.
MAX_CALL_ID: Final = 10_000

_TEXT_KINDS: Final = ("text", "input_text", "output_text")
_THINKING_KINDS: Final = ("thinking", "redacted_thinking")


def read_history(data: Any) -> tuple[list[Message], list[str]]:
    """``(messages, system texts)``: the messages in our own form (see :mod:`core.session.repair`).

    Several texts of one message are joined by a blank line; thinking is left out, and so are keys that are not part
    of the conversation. Raises ``InvalidRequest`` that names the place: not at most 10,000 objects, an unknown role,
    content of a wrong type, anything but text (image, audio, file, unknown), text that cannot be kept, an id of
    more than 10,000 characters.
    """
    if not isinstance(data, list):
        _refuse("messages", "must be a list")
    if len(data) > MAX_MESSAGES:
        _refuse("messages", f"must have {MAX_MESSAGES:,} entries at most")
    reader = _Reader()
    for index, message in enumerate(data):
        reader.take(message, index)
    return reader.messages, reader.system


class _Reader:
    """Takes message by message; remembers the calls of the old ``function_call`` form, which have no ids."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.system: list[str] = []
        self._functions: dict[str, list[str]] = {}

    def take(self, message: Any, index: int) -> None:
        """Read one message, which stands for one of ours or for several. Raises ``InvalidRequest``."""
        where = f"messages.{index}"
        role = _object(message, where).get("role")
        if role in ("system", "developer"):
            text = _text(message.get("content"), f"{where}.content")
            self.system += [text] if text.strip() else []
        elif role == "user":
            self._take_user(message.get("content"), f"{where}.content")
        elif role == "assistant":
            self._take_assistant(message, where, index)
        elif role == "tool":
            call_id = _call_id(message.get("tool_call_id"), f"{where}.tool_call_id")
            self.messages.append(_result(call_id, message, where))
        elif role == "function":
            name = _name(message.get("name"), f"{where}.name")
            waiting = self._functions.get(name)
            call_id = waiting.pop() if waiting else f"function_{index}"
            self.messages.append(_result(call_id, message, where))
        else:
            _refuse(f"{where}.role", "must be user, assistant, tool, function, system or developer")

    def _take_user(self, content: Any, where: str) -> None:
        """Results first: wherever they stand among the blocks, they answer the message before."""
        texts, results = [], []
        if isinstance(content, list):
            for number, part in enumerate(content):
                place = f"{where}.{number}"
                if _object(part, place).get("type") == "tool_result":
                    call_id = _call_id(part.get("tool_use_id"), f"{place}.tool_use_id")
                    results.append(_result(call_id, part, place))
                else:
                    texts.append(_part_text(part, place))
        else:
            texts.append(_text(content, where))
        text = _join(texts)
        self.messages += results
        if text.strip() or not results:
            self.messages.append({"role": "user", "content": text})

    def _take_assistant(self, message: Message, where: str, index: int) -> None:
        if message.get("audio") is not None:
            _refuse(f"{where}.audio", "only text can be read")
        content = message.get("content")
        texts, calls = [], []
        if isinstance(content, list):
            for number, part in enumerate(content):
                place = f"{where}.content.{number}"
                kind = _object(part, place).get("type")
                if kind == "tool_use":
                    calls.append(_call(part.get("id"), part.get("name"), _input_text(part, place), place))
                elif kind not in _THINKING_KINDS:
                    texts.append(_part_text(part, place))
        elif content is not None:
            texts.append(_text(content, f"{where}.content"))
        if message.get("refusal") is not None:
            texts.append(_string(message["refusal"], f"{where}.refusal"))
        calls += _tool_calls(message.get("tool_calls"), f"{where}.tool_calls")
        calls += self._function_call(message.get("function_call"), f"{where}.function_call", index)
        read: Message = {"role": "assistant", "content": _join(texts)}
        self.messages.append(read | {"tool_calls": calls} if calls else read)

    def _function_call(self, call: Any, where: str, index: int) -> list[Message]:
        if call is None:
            return []
        read = _function(f"function_{index}", call, where)
        self._functions.setdefault(read["function"]["name"], []).append(read["id"])
        return [read]


# -- calls and results ---------------------------------------------------------------------


def _tool_calls(calls: Any, where: str) -> list[Message]:
    if calls is None:
        return []
    if not isinstance(calls, list):
        _refuse(where, "must be a list")
    read = []
    for number, call in enumerate(calls):
        place = f"{where}.{number}"
        if _object(call, place).get("type", "function") != "function":
            _refuse(f"{place}.type", "must be function")
        read.append(_function(_call_id(call.get("id"), f"{place}.id"), call.get("function"), f"{place}.function"))
    return read


def _function(call_id: str, function: Any, where: str) -> Message:
    arguments = _object(function, where).get("arguments")
    if isinstance(arguments, dict):
        arguments = _json_text(arguments, f"{where}.arguments")
    arguments = "{}" if arguments is None else _string(arguments, f"{where}.arguments")
    return _call(call_id, function.get("name"), arguments, where)


def _call(call_id: Any, name: Any, arguments: str, where: str) -> Message:
    function = {"name": _name(name, f"{where}.name"), "arguments": arguments}
    return {"id": _call_id(call_id, f"{where}.id"), "type": "function", "function": function}


def _input_text(block: Message, where: str) -> str:
    return _json_text(_object(block.get("input"), f"{where}.input"), f"{where}.input")


def _json_text(value: dict[str, Any], where: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        _refuse(where, "must be JSON")
    return _string(text, where)


def _result(call_id: str, source: Message, where: str) -> Message:
    content = source.get("content")
    text = "" if content is None else _text(content, f"{where}.content")
    result: Message = {"role": "tool", "tool_call_id": call_id, "content": text}
    return result | {"is_error": True} if source.get("is_error") is True else result


def _call_id(value: Any, where: str) -> str:
    """The id; one that is missing is left to the repair."""
    call_id = "" if value is None else _string(value, where)
    if len(call_id) > MAX_CALL_ID:
        _refuse(where, f"must have {MAX_CALL_ID:,} characters at most")
    return call_id


def _name(value: Any, where: str) -> str:
    name = _string(value, where)
    if not name.strip():
        _refuse(where, "must not be blank")
    return name


# -- texts ---------------------------------------------------------------------------------


def _text(content: Any, where: str) -> str:
    """The text, given as a string or as a list of text parts."""
    if isinstance(content, str):
        return _string(content, where)
    if not isinstance(content, list):
        _refuse(where, "must be a text or a list of text parts")
    return _join([_part_text(part, f"{where}.{number}") for number, part in enumerate(content)])


def _part_text(part: Any, where: str) -> str:
    kind = _object(part, where).get("type")
    if kind in _TEXT_KINDS:
        return _string(part.get("text"), f"{where}.text")
    if kind == "refusal":
        return _string(part.get("refusal"), f"{where}.refusal")
    _refuse(where, "only text can be read here")


def _join(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else "\n\n".join(text for text in texts if text.strip())


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, "must be an object")
    return value


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _refuse(where, "must be a text")
    _check_text(value, where)
    return value


def _check_text(text: str, where: str) -> None:
    """Refuse what the store cannot keep, in the words that the HTTP edge has for it."""
    if "\x00" in text:
        _refuse(where, "holds a NUL character")
    if whole_text(text) != text:
        _refuse(where, "holds half a character (a lone surrogate)")


def _refuse(where: str, message: str) -> NoReturn:
    raise InvalidRequest(f"{where}: {message}", errors=[{"field": where, "message": message}])
