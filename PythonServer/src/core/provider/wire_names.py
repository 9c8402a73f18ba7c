"""Tool names and call ids as model servers take them, whatever the wire form.

Both the OpenAI and the Anthropic API refuse names outside ``[a-zA-Z0-9_-]{1,64}``; OpenAI refuses ids of more than 40
characters, Anthropic ids outside ``[a-zA-Z0-9_-]+`` and an id that comes twice in one request. Inner names and ids come
from tool servers, from models that make names up, and from histories that were handed in, and promise nothing of the
kind. One that is refused would be in every later request of its session, too.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from core.provider.provider import ModelRequest

_MAX_NAME: Final = 64
_MAX_ID: Final = 40
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


class ToolNames:
    """Inner names and the wire's, both ways.

    The same names in the same order always give the same wire names, and further ``called`` ones change none before.
    """

    def __init__(self, offered: Iterable[str], called: Iterable[str] = ()) -> None:
        self._wire: dict[str, str] = {}
        self._inner: dict[str, str] = {}
        self._words = _Words(_MAX_NAME)
        # An offered name that servers take as it is keeps it, whoever comes to it by being cleaned.
        for name in (*sorted(offered, key=lambda one: _clean(one, "tool", _MAX_NAME) != one), *called):
            if name not in self._wire:
                wire = self._words.take(_clean(name, "tool", _MAX_NAME))
                self._wire[name] = wire
                self._inner[wire] = name

    def wire(self, name: str) -> str:
        """What the wire calls the tool. ``KeyError`` for a name that was not given at the start."""
        return self._wire[name]

    def inner(self, wire_name: str) -> str:
        """The tool's own name; the word itself if the model made one up."""
        return self._inner.get(wire_name, wire_name)


class CallIds:
    """The ids of one request's calls, renamed in order of appearance, so that earlier ones never change."""

    def __init__(self) -> None:
        self._words = _Words(_MAX_ID)
        #: Inner id -> wire ids of the calls that still lack their result.
        self._open: defaultdict[str, deque[str]] = defaultdict(deque)

    def begin_round(self, ids: Sequence[str]) -> list[str]:
        """The wire ids for the calls of one assistant message."""
        return [self._new(call_id) for call_id in ids]

    def for_result(self, call_id: str) -> str:
        """The wire id of the call that this result belongs to."""
        waiting = self._open.get(call_id)
        return waiting.popleft() if waiting else _clean(call_id, "call", _MAX_ID)

    def _new(self, call_id: str) -> str:
        wire = self._words.take(_clean(call_id, "call", _MAX_ID))
        self._open[call_id].append(wire)
        return wire


def tool_names(request: ModelRequest) -> ToolNames:
    """The names of the tools that are offered, then of those that the history calls."""
    return ToolNames((tool["function"]["name"] for tool in request.tools), called_names(request))


def called_names(request: ModelRequest) -> Iterator[str]:
    """The tools that the history calls, each as often as it is called."""
    for message in request.messages:
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"]


class _Words:
    """Words of at most ``most`` characters, each given out once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: set[str] = set()
        #: Word -> the highest number that was tried for it: a thousand equal words need no million tries.
        self._numbers: dict[str, int] = {}

    def take(self, word: str) -> str:
        """The word, or its beginning with the smallest number that makes it new."""
        free = word
        while free in self._taken:
            number = self._numbers[word] = self._numbers.get(word, 1) + 1
            ending = f"_{number}"
            free = word[: self._most - len(ending)] + ending
        self._taken.add(free)
        return free


def _clean(word: str, instead: str, most: int) -> str:
    return _FOREIGN.sub("_", word)[:most] or instead
