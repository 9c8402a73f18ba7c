"""The transport to an MCP server over streamable HTTP: the SDK's, with bounds for what it leaves open."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
from mcp import types
from mcp.client.streamable_http import streamable_http_client

from core.tool.mcp.config import HttpEntry
from core.tool.mcp.notice import current_notice

_CONNECT_S: Final = 10.0
#: Seconds for what needs no answer: a notification, and the end of the session. The SDK sends nothing else meanwhile.
_NOTICE_S: Final = 1.0
#: The words for a request that has not left.
UNREACHABLE: Final = "it cannot be reached"
_CANCELLED: Final = "notifications/cancelled"
#: A stream of events may be so many times as long as one message.
_STREAM_MESSAGES: Final = 16


class _Bounded(httpx2.AsyncHTTPTransport):
    """Keeps one request that fails from ending the whole session, which other turns use."""

    def __init__(self, message_bytes: int) -> None:
        super().__init__()
        self._message_bytes = message_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # Bytes are counted as they come: a megabyte that is compressed may be a gigabyte.
        request.headers["Accept-Encoding"] = "identity"
        timeout: dict[str, Any] = request.extensions.get("timeout", {})
        if request.method == "GET":  # the stream of what the server says unasked
            request.extensions["timeout"] = {**timeout, "read": None}
            return await self._checked(request, await super().handle_async_request(request), None)
        message_id, method = _kind_of(request)
        if message_id is None:
            request.extensions["timeout"] = dict.fromkeys(timeout, _NOTICE_S)
            return await (self._send_cancel(request) if method == _CANCELLED else self._send_notice(request))
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            return _failed(request, message_id, error)
        return await self._checked(request, response, message_id)

    async def _send_notice(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._checked(request, await super().handle_async_request(request), None)
        except httpx2.TransportError:
            return httpx2.Response(202, request=request)

    async def _send_cancel(self, request: httpx2.Request) -> httpx2.Response:
        """Tells the call what became of its notice."""
        notice = current_notice()
        if notice is None:
            return await self._send_notice(request)
        request.extensions["trace"] = notice.watch
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            notice.end(None if notice.has_left else f"the server {_why(error)}")
            return httpx2.Response(202, request=request)
        except BaseException:
            notice.end(None if notice.has_left else "the session has ended")
            raise
        notice.end(None if response.is_success else f"the server answered with status {response.status_code}")
        return await self._checked(request, response, None)

    async def _checked(
        self, request: httpx2.Request, response: httpx2.Response, message_id: int | str | None
    ) -> httpx2.Response:
        """The response with a bound for its body, or one in its place that says what is wrong with it."""
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            await response.aclose()
            if message_id is None:
                return httpx2.Response(502, request=request)
            return _fault(
                request, message_id, types.PARSE_ERROR, f"its answer is encoded ({encoding[:40]!r}); none may be"
            )
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if not is_stream or request.method != "GET":
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            most = self._message_bytes * (_STREAM_MESSAGES if is_stream else 1)
            response.stream = _Capped(response.stream, most)
        return response


class _Capped(httpx2.AsyncByteStream):
    """A body that fails when it is longer than a message may be. ``StreamError`` is what the SDK expects."""

    def __init__(self, stream: httpx2.AsyncByteStream, cap: int) -> None:
        self._stream = stream
        self._cap = cap

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._cap
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.StreamError(f"it answered with more than {self._cap} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _kind_of(request: httpx2.Request) -> tuple[int | str | None, str | None]:
    """The id of the request in it, and its method. No id: a notification, an answer, or the end of the session."""
    if request.method != "POST":
        return None, None
    message = json.loads(request.content)
    method = message.get("method")
    return (message.get("id") if method else None), method


def _failed(request: httpx2.Request, message_id: int | str, error: Exception) -> httpx2.Response:
    has_not_left = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    text = UNREACHABLE if has_not_left else f"its answer did not come ({type(error).__name__})"
    return _fault(request, message_id, types.CONNECTION_CLOSED, text)


def _fault(request: httpx2.Request, message_id: int | str, code: int, text: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}}
    return httpx2.Response(502, json=body, request=request)


def _why(error: Exception) -> str:
    is_gone = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return "cannot be reached" if is_gone else f"was lost ({type(error).__name__})"


@contextlib.asynccontextmanager
async def http_streams(entry: HttpEntry, read_timeout_s: float, message_bytes: int) -> AsyncIterator[tuple[Any, Any]]:
    """The streams that a session speaks through. A request that brings nothing for so long has failed."""
    timeout = httpx2.Timeout(_CONNECT_S, read=read_timeout_s)
    async with (
        httpx2.AsyncClient(headers=entry.headers, timeout=timeout, transport=_Bounded(message_bytes)) as client,
        streamable_http_client(entry.url, http_client=client, max_sse_event_size=message_bytes) as streams,
    ):
        yield streams
