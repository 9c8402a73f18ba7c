"""The answer to one call: writes it, counts it in the log, and can break off in every way a server may."""

import socket
import struct
from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web

from de2generator.call_log import CallLog
from de2generator.chat_request import ChatRequest
from de2generator.logged_call import CloseReason, LoggedCall
from de2generator.openai_wire import Message, usage_of

_JSON = {"Content-Type": "application/json"}
_EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_CANCELLED = "the request was cancelled"


class WireForm(Protocol):
    """A wire form, as far as every kind of answer needs it."""

    def refusal(self, status: int, message: str) -> bytes:
        """The error as the whole answer."""

    def error(self, status: int, message: str) -> bytes:
        """The error as the last frame of a stream."""

    def whole(self, message: Message, reason: str, usage: dict[str, Any] | None) -> bytes:
        """A reply in one piece."""


class Reply:
    """What both kinds of answer share: status, headers, raw bytes, and the ways to end.

    Every write raises ``ConnectionError`` once the client has hung up.
    """

    def __init__(
        self, request: web.BaseRequest, chat: ChatRequest, call: LoggedCall, log: CallLog, wire: WireForm
    ) -> None:
        self._request = request
        self._chat = chat
        self._call = call
        self._log = log
        self._wire = wire
        #: The answer once its headers are written.
        self.response: web.StreamResponse | None = None
        #: How the call ended, as far as this side decides.
        self.close_reason = CloseReason.FINISHED
        self._is_inside_frame = False

    @property
    def is_client_gone(self) -> bool:
        """Whether the client has hung up."""
        transport = self._request.transport
        return transport is None or transport.is_closing()

    async def text(self, piece: str) -> None:
        """Say one token."""
        raise NotImplementedError

    async def reasoning(self, piece: str) -> None:
        """Think one token aloud, as ``reasoning_content``."""
        raise NotImplementedError

    async def tool_call(self, index: int, name: str, arguments: str, pause_s: float) -> None:
        """Call a tool."""
        raise NotImplementedError

    async def finish(self, reason: str = "stop") -> None:
        """End the answer properly."""
        raise NotImplementedError

    def said(self, text: str) -> tuple[bytes, bytes]:
        """A whole answer with this text: the bytes up to and with the text, and the bytes that end it."""
        raise NotImplementedError

    async def open(self) -> None:
        """Write the headers of a 200 answer, if they are not yet written."""
        if self.response is not None:
            return
        self._check_client()
        self.response = web.StreamResponse(headers=_EVENTS if self._chat.stream else _JSON)
        if self._request.version >= (1, 1):
            self.response.enable_chunked_encoding()
        self._call.status = 200
        await self.response.prepare(self._request)
        self._note_first_byte()

    async def raw(self, data: bytes, tokens: int = 0, *, ends_frame: bool = True) -> None:
        """Write bytes as they are. Waits while the client does not read."""
        await self.open()
        self._check_client()
        assert self.response is not None
        self._call.bytes_sent += len(data)
        self._is_inside_frame = not ends_frame
        if tokens:
            self._log.note_tokens(self._call, tokens)
        await self.response.write(data)

    async def end(self) -> None:
        """End the body properly, whatever was written."""
        await self.open()
        assert self.response is not None
        await self.response.write_eof()

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str] = _JSON, tokens: int = 0) -> None:
        """Answer with one body of known length."""
        self._check_client()
        self.response = response = web.Response(status=status, body=body, headers=headers)
        self._call.status = status
        await response.prepare(self._request)
        self._note_first_byte()
        self._call.bytes_sent += len(body)
        if tokens:
            self._log.note_tokens(self._call, tokens)
        await response.write_eof()

    async def error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Say what went wrong: as the whole answer, or as the last frame of a stream that has begun."""
        if self.response is None:
            await self.whole(status, self._wire.refusal(status, message), {**_JSON, **(headers or {})})
        elif isinstance(self.response, web.Response) or not self._chat.stream:
            self.cut()
        else:
            start = b"\n\n" if self._is_inside_frame else b""
            await self.raw(start + self._wire.error(status, message))
            await self.end()

    async def cancelled(self) -> None:
        """Answer 499."""
        await self.error(499, _CANCELLED)

    def cut(self, *, reset: bool = False) -> None:
        """Close the connection without an end to the answer; ``reset`` sends RST in place of FIN."""
        self.close_reason = CloseReason.DROPPED
        transport = self._request.transport
        if transport is None:
            return
        if reset:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()
        else:
            transport.close()

    def usage(self) -> dict[str, int]:
        """A rough count: a token for each word asked, and the tokens written."""
        asked = sum(len(str(message.get("content") or "").split()) for message in self._chat.messages)
        return usage_of(asked, len(self._call.token_times))

    def tool_call_id(self, index: int) -> str:
        """An id that no other tool call of this gateway has."""
        return f"{self._call.id}_tool_{index}"

    def _note_first_byte(self) -> None:
        self._call.first_byte_at = self._log.now()

    def _check_client(self) -> None:
        if self.is_client_gone:
            raise ConnectionResetError("the client has hung up")
