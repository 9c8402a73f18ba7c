"""Tool calls, put together from the pieces of a stream; and the shape checks that the reader shares."""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from core.errors import ProviderNonsense
from core.provider.provider import ToolCall
from core.surrogates import whole_text

_MAX_NAME = 1000


@dataclass(slots=True)
class _Open:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ToolCallPieces:
    """Joins pieces by ``index``; copes with servers that leave out the index, the id, or both."""

    def __init__(self) -> None:
        #: Pieces so far.
        self.count = 0
        self._in_order: list[_Open] = []
        self._by_index: dict[int, _Open] = {}
        self._by_id: dict[str, _Open] = {}

    def take(self, pieces: Any, *, is_whole: bool = False) -> None:
        """Add the ``tool_calls`` of one delta; with ``is_whole`` each entry is a call of its own."""
        if pieces is None:
            return
        if not isinstance(pieces, list):
            raise ProviderNonsense("the model server sent tool calls that are not a list")
        for piece in pieces:
            self.count += 1
            self._add(as_dict(piece, "a tool call"), is_whole)

    def complete(self) -> list[ToolCall]:
        """The calls in the order in which they began, each with an id of its own. Clears the pieces."""
        calls: list[ToolCall] = []
        used: set[str] = set()
        for part in self._in_order:
            if not part.name:
                raise ProviderNonsense("the model server sent a tool call without a name")
            # A result is matched to its call by id, so an id that is missing or repeated must not stay.
            call_id = part.id if part.id and part.id not in used else f"call_{uuid.uuid4().hex[:24]}"
            used.add(call_id)
            arguments = whole_text("".join(part.arguments))
            calls.append(ToolCall(call_id, whole_text(part.name), arguments or "{}"))
        for parts in (self._in_order, self._by_index, self._by_id):
            parts.clear()
        return calls

    def _add(self, piece: dict[str, Any], is_whole: bool) -> None:
        function = as_dict(piece.get("function") or {}, "a function")
        call_id = whole_text(as_text(piece.get("id")))
        part = self._new() if is_whole else self._part(piece.get("index"), call_id)
        part.id = part.id or call_id
        name = as_text(function.get("name"))
        if name and name != part.name:
            part.name += name
            if len(part.name) > _MAX_NAME:
                raise ProviderNonsense("the model server sent a tool name without end")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            part.arguments.append(json.dumps(arguments, ensure_ascii=False))
        else:
            part.arguments.append(as_text(arguments))

    def _part(self, index: Any, call_id: str) -> _Open:
        if isinstance(index, int):
            part = self._by_index.get(index)
            # Some servers give every parallel call the index 0: another id begins another call.
            if part is None or (call_id and part.id and call_id != part.id):
                part = self._by_index[index] = self._new()
            return part
        if call_id:
            part = self._by_id.get(call_id)
            if part is None:
                part = self._by_id[call_id] = self._new()
            return part
        return self._in_order[-1] if self._in_order else self._new()

    def _new(self) -> _Open:
        self._in_order.append(_Open())
        return self._in_order[-1]


def as_dict(value: Any, what: str) -> dict[str, Any]:
    """The value, or ``ProviderNonsense`` that names what should have been an object."""
    if isinstance(value, dict):
        return value
    raise ProviderNonsense(f"the model server sent {what} that is not an object")


def as_text(value: Any) -> str:
    """The value, "" for null, the text parts of a list of parts; else ``ProviderNonsense``."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(as_text(part.get("text")) for part in value if isinstance(part, dict))
    raise ProviderNonsense("the model server sent text that is not a string")
