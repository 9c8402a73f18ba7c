"""What a command writes: as text, piece by piece, under one cap."""

from __future__ import annotations

import codecs
import threading
import time
from itertools import groupby
from operator import itemgetter
from typing import Final

from core.clock import Alarm, alarm_clock
from core.tool.tool import OutputPort

#: The most of a stream, in bytes of UTF-8, that goes to the model.
SHOWN_BYTES: Final = 64 * 1024
#: The longest piece that is handed on, in characters: 64 KiB, whatever the characters are.
_PIECE_ASCII, _PIECE_OTHER = 64 * 1024, 16 * 1024
#: Seconds for which small pieces are gathered after one was handed on: each becomes an event.
_GATHER_S: Final = 0.05
#: Room for the line that says how much is missing.
_GAP_BYTES = 64


class Output:
    """The output of one call, kept, and handed on as it comes: the first piece after a pause at once."""

    def __init__(self, cap: int, emit: OutputPort) -> None:
        self._left = cap
        self._emit = emit
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._pieces: dict[str, list[str]] = {"stdout": [], "stderr": []}
        # Handed on by the reading thread or the clock's; the lock keeps the pieces in order.
        self._lock = threading.Lock()
        self._gathered: list[tuple[str, str]] = []
        self._handed_on_at = 0.0
        self._alarm: Alarm | None = None

    def take(self, stream: str, data: bytes) -> bool:
        """Take in what was read, whole characters only; False once both streams together are longer than the cap."""
        fits = len(data) <= self._left
        data = data[: self._left]
        self._left -= len(data)
        self._gather(stream, self._decoders[stream].decode(data))
        return fits

    def finish(self) -> None:
        """Nothing more comes: half a character at the end becomes a replacement character."""
        for stream, decoder in self._decoders.items():
            self._gather(stream, decoder.decode(b"", final=True))
        self._hand_on()

    def text(self, stream: str) -> str:
        """All of a stream so far."""
        return "".join(self._pieces[stream])

    def _gather(self, stream: str, text: str) -> None:
        if not text:
            return
        self._pieces[stream].append(text)
        with self._lock:
            self._gathered.append((stream, text))
            if self._alarm is not None:
                return
            left = self._handed_on_at + _GATHER_S - time.monotonic()
            if left > 0:
                self._alarm = alarm_clock.after(left, self._hand_on)
                return
        self._hand_on()

    def _hand_on(self) -> None:
        with self._lock:
            if self._alarm is not None:
                self._alarm.call_off()
                self._alarm = None
            for stream, text in _joined(self._gathered):
                size = _PIECE_ASCII if text.isascii() else _PIECE_OTHER
                for start in range(0, len(text), size):
                    self._emit(stream, text[start : start + size])
            self._gathered.clear()
            self._handed_on_at = time.monotonic()


def _joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pieces in order, neighbours of the same stream as one."""
    return [(stream, "".join(text for _, text in group)) for stream, group in groupby(pieces, key=itemgetter(0))]


def shorten(text: str, limit: int = SHOWN_BYTES) -> str:
    """At most ``limit`` bytes of UTF-8: beginning and end, and between them how much was left out."""
    data = text.encode()
    return text if len(data) <= limit else _around_gap(data, data, len(data), limit)


def _around_gap(beginning: bytes, end: bytes, size: int, limit: int) -> str:
    half = (limit - _GAP_BYTES) // 2
    head = beginning[:half].decode(errors="ignore")
    tail = end[-half:].decode(errors="ignore")
    missing = size - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {missing} bytes left out ...]\n{tail}"


class Excerpt:
    """Text that comes in pieces, however many: only what can be shown of it is kept."""

    def __init__(self, text: str = "") -> None:
        self._head = bytearray()
        #: What comes after the head: all of it, or the end.
        self._tail = bytearray()
        self._size = 0
        self.add(text)

    def add(self, text: str) -> None:
        """The next piece."""
        data = text.encode()
        self._size += len(data)
        room = SHOWN_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, len(data) - SHOWN_BYTES) :]
        if len(self._tail) > 2 * SHOWN_BYTES:  # not at every piece
            del self._tail[:-SHOWN_BYTES]

    def shown(self, limit: int = SHOWN_BYTES) -> str:
        """As :func:`shorten` of all of it; ``limit`` is at most ``SHOWN_BYTES``."""
        if self._size <= limit:
            return (self._head + self._tail).decode()
        return _around_gap(bytes(self._head), bytes(self._head + self._tail), self._size, limit)
