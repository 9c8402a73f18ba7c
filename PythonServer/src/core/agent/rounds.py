"""What one goal said and did, round by round: a piece of text, then the tools that it called, and so on.

The same from memory and from the log: a running goal notes its own events here, and a restart folds the committed
ones with :meth:`Rounds.take`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from core.agent.told import Told, told_messages
from core.events import EventType


@dataclass(slots=True)
class RoundCall:
    """One tool call of a round; ``result`` is None while it is open. ``id`` is ours, and unique in the session."""

    id: str
    name: str
    #: The model's own JSON text.
    arguments: str
    result: str | None = None
    is_error: bool = False


@dataclass(slots=True)
class Round:
    """Text of the model, and the tool calls that followed it."""

    parts: list[str] = field(default_factory=list)
    calls: list[RoundCall] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self.parts)


class Rounds:
    """All rounds of a goal; the last one without calls is its answer, or as far as that came."""

    __slots__ = ("_rounds", "_told")

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        #: Number of a round -> what the user said before the model made it.
        self._told: dict[int, list[Told]] = {}

    # -- noting ---------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Text of the model; after a tool call, or a message that cut it off, it begins a new round."""
        if not self._rounds or self._rounds[-1].calls or self._is_cut():
            self._rounds.append(Round())
        self._rounds[-1].parts.append(text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """A tool call; after a result, or a message that cut the model off, it begins a new round."""
        if not self._rounds or any(call.result is not None for call in self._rounds[-1].calls) or self._is_cut():
            self._rounds.append(Round())
        self._rounds[-1].calls.append(RoundCall(call_id, name, arguments))

    def answer(self, call_id: str, content: str, is_error: bool) -> None:
        """The result of a call. The first one stands."""
        for call in self.open_calls():
            if call.id == call_id:
                call.result, call.is_error = content, is_error

    def tell(self, told: Told, before: int) -> None:
        """A message of the user; the model has it from the round with that number on."""
        if told.is_cut:
            self.ask_again()
        self._told.setdefault(before, []).append(told)

    def ask_again(self) -> None:
        """The request in flight came to nothing and is made again: with what was meant for the round after it, too."""
        count = len(self._rounds)
        for number in sorted(number for number in self._told if number > count):
            self._told.setdefault(count, []).extend(self._told.pop(number))

    def untell(self, message_id: str) -> None:
        """That message did not go in after all."""
        left = {number: [each for each in told if each.id != message_id] for number, told in self._told.items()}
        self._told = {number: told for number, told in left.items() if told}

    def _is_cut(self) -> bool:
        return bool(self._told) and any(each.is_cut for each in self._told.get(len(self._rounds), ()))

    def take(self, event_type: str, call_id: str | None, data: dict[str, Any]) -> None:
        """Note what a committed event tells; other events change nothing."""
        if event_type == EventType.TEXT:
            self.say(data["text"])
        elif event_type == EventType.TOOL_CALL and call_id is not None:
            self.call(call_id, data["name"], data["arguments"])
        elif event_type == EventType.TOOL_RESULT and call_id is not None:
            self.answer(call_id, data["content"], data["is_error"])
        elif event_type == EventType.RETRY:
            self.ask_again()

    # -- asking ---------------------------------------------------------------------------

    def open_calls(self) -> list[RoundCall]:
        """The calls without a result, in order."""
        return [call for each in self._rounds for call in each.calls if call.result is None]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said or done."""
        return not self._rounds

    @property
    def has_calls(self) -> bool:
        """Whether a tool was called."""
        return any(each.calls for each in self._rounds)

    def has_call(self, call_id: str) -> bool:
        """Whether this call is among them."""
        return any(call.id == call_id for each in self._rounds for call in each.calls)

    def has_told(self, message_id: str) -> bool:
        """Whether the user's message is among them."""
        return any(each.id == message_id for told in self._told.values() for each in told)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._rounds)

    @property
    def text(self) -> str:
        """Everything that was said, a blank line between rounds."""
        return "\n\n".join(text for each in self._rounds if (text := each.text).strip())

    def messages(self) -> list[dict[str, Any]]:
        """The rounds as history behind a user's message, in the inner form.

        Valid once no call is open: each call has its result after it. What the user said stands where the model met it.
        """
        said = self._messages_so_far()
        for number in sorted(number for number in self._told if number > len(self._rounds)):
            said += self._told_before(number, said)
        return said

    def messages_to_ask(self) -> list[dict[str, Any]]:
        """The same for the request that makes the next round: without what the user says while that is made.

        What was cut off is left out if nothing follows it, as when the message that cut it off was withdrawn.
        """
        said = self._messages_so_far()
        while said and said[-1]["role"] == "assistant":
            said.pop()
        return said

    def _messages_so_far(self) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        for number, each in enumerate(self._rounds):
            said += self._told_before(number, said)
            message: dict[str, Any] = {"role": "assistant", "content": each.text if each.text.strip() else ""}
            if each.calls:
                message["tool_calls"] = [_wire_call(call) for call in each.calls]
            elif not message["content"]:
                continue
            said.append(message)
            said.extend(_wire_result(call) for call in each.calls)
        return said + self._told_before(len(self._rounds), said)

    def _told_before(self, number: int, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return told_messages(self._told.get(number, ()), follows_user=not said or said[-1]["role"] == "user")


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a tool call; None if they are not a JSON object. Nothing at all is an empty one."""
    try:
        value = json.loads(text.strip() or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def valid_arguments(text: str) -> str:
    """Arguments as a history may hold them, since providers demand a JSON object; what is none is put into one."""
    if not text.strip():
        return "{}"
    return text if parse_arguments(text) is not None else json.dumps({"invalid_arguments": text}, ensure_ascii=False)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _wire_call(call: RoundCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": valid_arguments(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _wire_result(call: RoundCall) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "tool_call_id": call.id, "content": call.result or ""}
    return message | ({"is_error": True} if call.is_error else {})
