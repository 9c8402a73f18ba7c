"""What a command writes: as text, piece by piece, under one cap."""

from __future__ import annotations

import codecs
from typing import Final

from core.tool.tool import OutputPort

#: The most of a stream, in bytes of UTF-8, that goes to the model.
SHOWN_BYTES: Final = 64 * 1024
#: The longest piece that is handed on, in characters: 64 KiB, whatever the characters are.
_PIECE_ASCII, _PIECE_OTHER = 64 * 1024, 16 * 1024
#: Room for the line that says how much is missing.
_GAP_BYTES = 64


class Output:
    """The output of one call, kept and handed on as it comes. For one thread."""

    def __init__(self, cap: int, emit: OutputPort) -> None:
        self._left = cap
        self._emit = emit
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._pieces: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def take(self, stream: str, data: bytes) -> bool:
        """Take in what was read, whole characters only; False once both streams together are longer than the cap."""
        fits = len(data) <= self._left
        data = data[: self._left]
        self._left -= len(data)
        self._hand_on(stream, self._decoders[stream].decode(data))
        return fits

    def finish(self) -> None:
        """Nothing more comes: half a character at the end becomes a replacement character."""
        for stream, decoder in self._decoders.items():
            self._hand_on(stream, decoder.decode(b"", final=True))

    def text(self, stream: str) -> str:
        """All of a stream so far."""
        return "".join(self._pieces[stream])

    def _hand_on(self, stream: str, text: str) -> None:
        size = _PIECE_ASCII if text.isascii() else _PIECE_OTHER
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            self._pieces[stream].append(piece)
            self._emit(stream, piece)


def shorten(text: str, limit: int = SHOWN_BYTES) -> str:
    """At most ``limit`` bytes of UTF-8: beginning and end, and between them how much was left out."""
    data = text.encode()
    if len(data) <= limit:
        return text
    half = (limit - _GAP_BYTES) // 2
    head = data[:half].decode(errors="ignore")
    tail = data[-half:].decode(errors="ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {missing} bytes left out ...]\n{tail}"
