"""The transport to an MCP server over streamable HTTP: the SDK's, with bounds for what it leaves open."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
from mcp import types
from mcp.client.streamable_http import streamable_http_client

from core.tool.mcp.config import HttpEntry

_CONNECT_S: Final = 10.0
#: Seconds for what needs no answer: a notification, and the end of the session. The SDK sends nothing else meanwhile.
_NOTICE_S: Final = 1.0
#: The words for a request that has not left.
UNREACHABLE: Final = "it cannot be reached"

# They log a line for each request, with its whole address.
for _name in ("httpx2", "mcp"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class _Bounded(httpx2.AsyncHTTPTransport):
    """Keeps one request that fails from ending the whole session, which other turns use."""

    def __init__(self, message_bytes: int) -> None:
        super().__init__()
        self._message_bytes = message_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        timeout: dict[str, Any] = request.extensions.get("timeout", {})
        if request.method == "GET":  # the stream of what the server says unasked
            request.extensions["timeout"] = {**timeout, "read": None}
            return await super().handle_async_request(request)
        message_id = _id_of(request)
        if message_id is None:
            request.extensions["timeout"] = dict.fromkeys(timeout, _NOTICE_S)
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            if message_id is None:
                return httpx2.Response(202, request=request)
            return _failed(request, message_id, error)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):  # those the SDK bounds
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Capped(response.stream, self._message_bytes)
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


def _id_of(request: httpx2.Request) -> int | str | None:
    """The id of the request in it; None for a notification, and for the end of the session."""
    if request.method != "POST":
        return None
    message = json.loads(request.content)
    return message.get("id") if "method" in message else None


def _failed(request: httpx2.Request, message_id: int | str, error: Exception) -> httpx2.Response:
    has_not_left = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    text = UNREACHABLE if has_not_left else f"its answer did not come ({type(error).__name__})"
    fault = {"code": types.CONNECTION_CLOSED, "message": text}
    body = {"jsonrpc": "2.0", "id": message_id, "error": fault}
    return httpx2.Response(502, json=body, request=request)


@contextlib.asynccontextmanager
async def http_streams(entry: HttpEntry, read_timeout_s: float, message_bytes: int) -> AsyncIterator[tuple[Any, Any]]:
    """The streams that a session speaks through. A request that brings nothing for so long has failed."""
    timeout = httpx2.Timeout(_CONNECT_S, read=read_timeout_s)
    async with (
        httpx2.AsyncClient(headers=entry.headers, timeout=timeout, transport=_Bounded(message_bytes)) as client,
        streamable_http_client(entry.url, http_client=client, max_sse_event_size=message_bytes) as streams,
    ):
        yield streams
