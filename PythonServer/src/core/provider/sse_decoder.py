"""Server-sent events: bytes in, data payloads out (WHATWG HTML, section 9.2, as much as we need)."""

import re
from collections.abc import Iterator

from core.errors import ProviderNonsense

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """Decodes one stream, cut into chunks at any place.

    Text is decoded a line at a time, so a character that falls between two chunks is whole. Memory is bounded
    by ``max_line`` and ``max_event`` bytes; the cost is linear in the bytes, also where no line ever ends.
    Raises ``ProviderNonsense`` for a line or event over its limit and for bytes that are not UTF-8.
    """

    def __init__(self, max_line: int = 1 << 20, max_event: int = 4 << 20) -> None:
        self._max_line = max_line
        self._max_event = max_event
        self._is_first_line = True
        #: Pieces of a line that has not ended.
        self._pieces: list[bytes] = []
        self._pieces_size = 0
        self._ends_in_cr = False
        self._data: list[str] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The payloads that this chunk completes."""
        if self._ends_in_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._ends_in_cr = False
        if not chunk:
            return
        self._ends_in_cr = chunk.endswith(b"\r")
        head, *lines = _LINE_END.split(chunk)
        if not lines:
            self._keep(head)
            return
        rest = lines.pop()
        self._keep(head)
        yield from self._line(self._take())
        for line in lines:
            self._check_line(len(line))
            yield from self._line(line)
        self._keep(rest)

    def finish(self) -> Iterator[str]:
        """What a stream without a last empty line still holds."""
        if self._pieces:
            yield from self._line(self._take())
        yield from self._line(b"")

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._pieces_size += len(piece)
            self._check_line(self._pieces_size)

    def _check_line(self, size: int) -> None:
        if size > self._max_line:
            raise ProviderNonsense(f"the model server sent a line of more than {self._max_line >> 10} KiB")

    def _take(self) -> bytes:
        line = b"".join(self._pieces)
        self._pieces.clear()
        self._pieces_size = 0
        return line

    def _line(self, line: bytes) -> Iterator[str]:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                payload = "\n".join(self._data)
                self._data.clear()
                self._data_size = 0
                if payload:  # some servers keep a connection alive with empty data
                    yield payload
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._add_data(value.removeprefix(b" "))

    def _add_data(self, value: bytes) -> None:
        self._data_size += len(value) + 1
        if self._data_size > self._max_event:
            raise ProviderNonsense(f"the model server sent an event of more than {self._max_event >> 10} KiB")
        try:
            self._data.append(value.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ProviderNonsense("the model server sent bytes that are not UTF-8") from error
