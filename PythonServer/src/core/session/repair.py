"""Repair of a history that is damaged, or was made elsewhere, so that every provider takes it.

The order that providers demand: a user first, then user and assistant in turn; an assistant message with tool calls
has exactly one result for each call directly after it, and then either side may go on; no text is blank or half a
character; call ids are unique; arguments are a JSON object.

Messages are in the OpenAI chat form, ``content`` a string: ``{"role": "user", "content"}``, ``{"role": "assistant",
"content", "tool_calls"?}``, ``{"role": "tool", "tool_call_id", "content", "is_error"?}``. Further keys stay.
"""

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from core.agent.rounds import valid_arguments
from core.surrogates import whole_text

Message = dict[str, Any]
#: A call: the index of its message, and its number in there.
_Place = tuple[int, int]

NO_RESULT: Final = "[no result was recorded]"
NO_ANSWER: Final = "[no answer was recorded]"
NO_BEGINNING: Final = "[the beginning of the conversation is missing]"
EMPTY_MESSAGE: Final = "[empty message]"
UNKNOWN_TOOL: Final = "unknown"

_ROLES: Final = ("user", "assistant", "tool")


def repair(messages: list[Message]) -> list[Message]:
    """The messages in an order that a user message may follow: none, or the last is of assistant or tool.

    What users and assistants said stays, in its order; two user messages are never merged. Results go to their calls;
    a call without one gets ``NO_RESULT``, a result without a call is left out, and so is a message of another role.
    A right history comes back equal, so a second repair changes nothing. The argument is not changed. Linear time.
    """
    whole = [_whole(message) for message in messages if message.get("role") in _ROLES]
    return _in_turn(_blocks(whole, _match(whole)))


# -- each message by itself ----------------------------------------------------------------


def _whole(message: Message) -> Message:
    """The message with a text for content, and with calls only where calls may be."""
    whole = {**message, "content": _text_of(message.get("content"))}
    calls = whole.pop("tool_calls", None)
    if whole["role"] == "user" and not whole["content"].strip():
        whole["content"] = EMPTY_MESSAGE
    elif whole["role"] == "tool":
        whole["tool_call_id"] = _id_of(message.get("tool_call_id"))
    elif whole["role"] == "assistant" and isinstance(calls, list):
        calls = [_whole_call(call) for call in calls if isinstance(call, dict)]
        if calls:
            whole["tool_calls"] = calls
    return whole


def _whole_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = dict(function) if isinstance(function, dict) else {}
    name = function.get("name")
    function["name"] = whole_text(name) if isinstance(name, str) and name.strip() else UNKNOWN_TOOL
    function["arguments"] = _arguments_of(function.get("arguments"))
    return {**call, "id": _id_of(call.get("id")), "type": "function", "function": function}


def _arguments_of(arguments: Any) -> str:
    """JSON text of an object; none at all, as models send it for a tool without parameters, is ``{}``."""
    if arguments is None:
        return "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return valid_arguments(whole_text(text))


def _id_of(value: Any) -> str:
    return "" if value is None else whole_text(str(value))


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return whole_text("\n\n".join(text for text in texts if isinstance(text, str)))
    return "" if content is None else whole_text(str(content))


# -- which result belongs to which call ----------------------------------------------------


def _match(messages: list[Message]) -> dict[_Place, Message]:
    """The result of each call that has one.

    Many servers begin again with the same ids in every round. So a result belongs to the nearest call before it that
    has its id and no result yet; of calls in one message to the first of them.
    """
    found: dict[_Place, Message] = {}
    waiting: defaultdict[str, list[deque[_Place]]] = defaultdict(list)
    early: list[Message] = []
    for index, message in enumerate(messages):
        for call_id, row in _places_by_id(index, message).items():
            waiting[call_id].append(row)
        if message["role"] == "tool":
            rows = waiting[message["tool_call_id"]]
            if rows:
                found[rows[-1].popleft()] = message
                if not rows[-1]:
                    rows.pop()
            else:
                early.append(message)
    unanswered = {call_id: deque(chain.from_iterable(rows)) for call_id, rows in waiting.items()}
    return found | _match_early(early, unanswered, found.values())


def _places_by_id(index: int, message: Message) -> dict[str, deque[_Place]]:
    places: dict[str, deque[_Place]] = {}
    for number, call in enumerate(message.get("tool_calls", ())):
        places.setdefault(call["id"], deque()).append((index, number))
    return places


def _match_early(
    early: list[Message], unanswered: dict[str, deque[_Place]], matched: Iterable[Message]
) -> dict[_Place, Message]:
    """The results that had no call waiting before them: each to the next call after it.

    Whatever call still waits stands after all of them that have its id. One that repeats a matched result word for
    word is a duplicate; it must not become the answer to another call.
    """
    found: dict[_Place, Message] = {}
    known = {(result["tool_call_id"], result["content"]) for result in matched}
    for result in early:
        identity = (result["tool_call_id"], result["content"])
        places = unanswered[result["tool_call_id"]]
        if places and identity not in known:
            known.add(identity)
            found[places.popleft()] = result
    return found


class _Ids:
    """Gives each call an id of its own: the first keeps its id, whatever comes later in the history."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}

    def unique(self, call_id: str) -> str:
        unique = call_id or self._next("call", 1)
        while unique in self._used:
            unique = self._next(call_id or "call", 2)
        self._used.add(unique)
        return unique

    def _next(self, stem: str, first: int) -> str:
        number = self._numbers.get(stem, first)
        self._numbers[stem] = number + 1
        return f"{stem}_{number}"


# -- the order -----------------------------------------------------------------------------


def _blocks(messages: list[Message], results: dict[_Place, Message]) -> Iterator[list[Message]]:
    """Each user message; each row of assistant messages joined into one, with the results of its calls after it."""
    ids = _Ids()
    row: list[Message] = []
    for index, message in enumerate(messages):
        if message["role"] == "user":
            if row:
                yield [_joined(row)]
                row = []
            yield [message]
        elif message["role"] == "assistant":
            row.append(message)
            if "tool_calls" in message:
                calls = [{**call, "id": ids.unique(call["id"])} for call in message["tool_calls"]]
                given = (results.get((index, number)) for number in range(len(calls)))
                after = [_result(call["id"], result, message) for call, result in zip(calls, given, strict=True)]
                yield [_joined(row) | {"tool_calls": calls}, *after]
                row = []
    if row:
        yield [_joined(row)]


def _joined(row: list[Message]) -> Message:
    """One message of several; of those that say nothing, the last if there is no other."""
    said = [message for message in row if not _says_nothing(message)] or row[-1:]
    if len(said) == 1:
        return said[0]
    joined: Message = {}
    for message in said:
        joined |= message
    joined["content"] = "\n\n".join(message["content"] for message in said if message["content"].strip())
    return joined


def _result(call_id: str, result: Message | None, call_message: Message) -> Message:
    if result is None:
        made = {"role": "tool", "tool_call_id": call_id, "content": NO_RESULT, "is_error": True}
        return made | _turn_of(call_message)
    return {**result, "tool_call_id": call_id}


def _in_turn(blocks: Iterable[list[Message]]) -> list[Message]:
    """The blocks in a row, with placeholders where a side is missing."""
    said: list[Message] = []
    silent: Message = {}
    for block in blocks:
        first = block[0]
        if _says_nothing(first):
            silent = first
            continue
        if first["role"] == "user":
            _close_turn(said, silent)
        elif not said:
            said.append({"role": "user", "content": NO_BEGINNING} | _turn_of(first))
        said += block
        silent = {}
    _close_turn(said, silent)
    return said


def _close_turn(said: list[Message], silent: Message) -> None:
    """Answer a user message that has no answer; ``silent`` is the blank one that it had, whose marks stay."""
    if said and said[-1]["role"] == "user":
        said.append(_turn_of(said[-1]) | silent | {"role": "assistant", "content": NO_ANSWER})


def _says_nothing(message: Message) -> bool:
    return message["role"] == "assistant" and not message["content"].strip() and "tool_calls" not in message


def _turn_of(message: Message) -> Message:
    return {"turn_id": message["turn_id"]} if "turn_id" in message else {}
