"""Tool names and call ids as the Anthropic Messages API takes them.

It refuses names outside ``[a-zA-Z0-9_-]{1,64}``, ids outside ``[a-zA-Z0-9_-]+``, and an id that comes twice in one
request. Inner names and ids come from tool servers and from other models, and promise nothing of the kind.
"""

import re
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Sequence
from typing import Final

_MAX_NAME: Final = 64
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


class ToolNames:
    """Inner names and the wire's, both ways. The same names in the same order always give the same wire names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._wire: dict[str, str] = {}
        self._inner: dict[str, str] = {}
        # A name that the API takes as it is keeps it, whoever comes to it by being cleaned.
        for name in sorted(dict.fromkeys(names), key=lambda one: _clean_name(one) != one):
            wire = _free(_clean_name(name), self._inner, _MAX_NAME)
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
        self._used: set[str] = set()
        #: Inner id -> wire ids of the calls that still lack their result.
        self._open: defaultdict[str, deque[str]] = defaultdict(deque)

    def begin_round(self, ids: Sequence[str]) -> list[str]:
        """The wire ids for the calls of one assistant message."""
        return [self._new(call_id) for call_id in ids]

    def for_result(self, call_id: str) -> str:
        """The wire id of the call that this result belongs to."""
        waiting = self._open.get(call_id)
        return waiting.popleft() if waiting else _clean_id(call_id)

    def _new(self, call_id: str) -> str:
        wire = _free(_clean_id(call_id), self._used)
        self._used.add(wire)
        self._open[call_id].append(wire)
        return wire


def _clean_name(name: str) -> str:
    return _FOREIGN.sub("_", name)[:_MAX_NAME] or "tool"


def _clean_id(call_id: str) -> str:
    return _FOREIGN.sub("_", call_id) or "call"


def _free(word: str, taken: Container[str], most: int | None = None) -> str:
    """The word, or the word with the smallest number that makes it new."""
    free, number = word, 1
    while free in taken:
        number += 1
        ending = f"_{number}"
        free = (word if most is None else word[: most - len(ending)]) + ending
    return free
