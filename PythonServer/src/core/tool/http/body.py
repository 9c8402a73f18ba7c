"""The body of an answer: under a cap, as text while it comes, or a word about what it is."""

from __future__ import annotations

import codecs
from email.message import Message
from typing import Final

from core.tool.output import Output
from core.tool.tool import OutputPort

_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/javascript", "application/yaml",
                      "application/x-ndjson", "application/x-www-form-urlencoded", "application/graphql")  # fmt: skip
_BINARY_TYPES: Final = ("image/", "audio/", "video/", "font/", "application/zip", "application/gzip", "application/pdf")
#: Names of codecs that a body may be written in; Python knows others, which are no encodings of the web.
_CHARSETS: Final = (
    "ascii", "utf-8", "utf-16", "utf-32", "iso8859", "iso2022", "cp", "latin", "shift", "euc", "gb", "big5", "koi8", "mac",
)  # fmt: skip
#: A character is at most so many times longer in UTF-8 than in another encoding.
_GROWTH: Final = 4


class Body:
    """Takes in the bytes, decompressed, and hands on text as it comes."""

    def __init__(self, cap: int, emit: OutputPort, content_type: str) -> None:
        """``content_type``: the header, empty if there is none."""
        header = Message()
        header["Content-Type"] = content_type or "application/octet-stream"
        self._type = header.get_content_type()
        self._codec = _codec(header.get_content_charset())
        self._output = Output(_GROWTH * cap, emit)
        self._cap = cap
        self._decoder: codecs.IncrementalDecoder | None = None
        #: Bytes so far.
        self.size = 0

    def take(self, data: bytes) -> bool:
        """False once there is more than the cap; what lies above it is dropped."""
        if data and not self.size and self._is_text(data):
            self._decoder = codecs.getincrementaldecoder(self._codec)("replace")
        fits = len(data) <= self._cap - self.size
        data = data[: self._cap - self.size]
        self.size += len(data)
        self._say(data, is_end=False)
        return fits

    def finish(self) -> None:
        """Nothing more comes."""
        self._say(b"", is_end=True)
        self._output.finish()

    def text(self) -> str:
        """What there is, or what it is if it is no text."""
        if self.size and self._decoder is None:
            return f"[{self.size} bytes of {self._type}, which is no text]"
        return self._output.text("stdout")

    def _say(self, data: bytes, is_end: bool) -> None:
        if self._decoder is not None:
            # Half a pair of UTF-32 or UTF-16 may come through as a lone surrogate, which is no text.
            text = self._decoder.decode(data, is_end)
            self._output.take("stdout", text.encode("utf-8", "replace"))

    def _is_text(self, first: bytes) -> bool:
        if self._type.startswith(_TEXT_TYPES) or self._type.endswith(("+json", "+xml")):
            return True
        if self._type.startswith(_BINARY_TYPES) or b"\0" in first:
            return False
        try:
            codecs.getincrementaldecoder("utf-8")().decode(first)
        except UnicodeDecodeError:
            return False
        return True


def _codec(charset: str | None) -> str:
    """The name of Python's codec for a charset; UTF-8, with or without its mark, for none and for an unknown one."""
    try:
        name = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):
        name = "utf-8"
    return name if name != "utf-8" and name.startswith(_CHARSETS) else "utf-8-sig"
