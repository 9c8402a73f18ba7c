"""A real OpenAI-compatible server behind the gateway.

The upstream call is always streamed, since most servers go on generating after the client of a whole
reply has hung up. It is closed in the moment in which the gateway's call ends, however that ends.
"""

import json
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from de2generator.anthropic_replies import WholeMessage
from de2generator.gateway import json_answer
from de2generator.openai_wire import DONE, Message, error_body
from de2generator.replies import StreamedReply, WholeReply
from de2generator.scene import Scene

_LONGEST_LINE = 16 * 1024 * 1024
_REFUSED = "the model server behind the gateway cannot be reached"


class Upstream:
    """The server behind; an asynchronous context manager. ``base_url`` ends in ``/v1``."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url.rstrip("/")

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=_LONGEST_LINE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def models(self, _request: web.BaseRequest) -> web.StreamResponse:
        """``GET /v1/models``: what the server behind says."""
        try:
            async with self._session.get(f"{self._base_url}/models") as response:
                body = await response.read()
                return web.Response(body=body, status=response.status, content_type="application/json")
        except aiohttp.ClientError:
            return json_answer(error_body(502, _REFUSED), 502)

    async def answer(self, scene: Scene) -> None:
        """Answer one call with what the server behind says; a refusal passes with its own status."""
        if not isinstance(scene.reply, StreamedReply | WholeReply) or isinstance(scene.reply, WholeMessage):
            await scene.reply.error(501, "with a server behind it, the gateway passes on chat completions only")
            return
        body = {**scene.chat.body, "stream": True, "stream_options": {"include_usage": True}}
        body.pop("metadata", None)
        try:
            response = await self._session.post(f"{self._base_url}/chat/completions", json=body)
        except aiohttp.ClientError as error:
            await scene.reply.error(502, f"{_REFUSED}: {error}")
            return
        try:
            if response.status == 200:
                await _pass_on(scene, response)
            else:
                await scene.reply.error(response.status, _message_of(await response.read()))
        finally:
            # Not release(): an answer that was not read to its end must not go on, nor be waited for.
            response.close()


@dataclass(slots=True)
class _Sum:
    """What the chunks add up to."""

    message: Message = field(default_factory=Message)
    reason: str = ""
    usage: dict[str, Any] | None = None
    tokens: int = 0

    def add(self, chunk: dict[str, Any]) -> int:
        """Add a chunk; how many tokens it carried, as far as one can tell."""
        self.usage = chunk.get("usage") or self.usage
        said = 0
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            self.reason = choice.get("finish_reason") or self.reason
            for name, kept in (("content", self.message.text), ("reasoning_content", self.message.reasoning)):
                if delta.get(name):
                    kept.append(delta[name])
                    said = 1
            for piece in delta.get("tool_calls") or []:
                self._add_tool_piece(piece)
                said = 1
        self.tokens += said
        return said

    def _add_tool_piece(self, piece: dict[str, Any]) -> None:
        calls = self.message.tool_calls
        index = piece.get("index", len(calls))
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        function = piece.get("function") or {}
        calls[index]["id"] = piece.get("id") or calls[index]["id"]
        calls[index]["function"]["name"] += function.get("name") or ""
        calls[index]["function"]["arguments"] += function.get("arguments") or ""


async def _pass_on(scene: Scene, response: aiohttp.ClientResponse) -> None:
    """Read events until the end; relay them, or keep them for a whole reply."""
    reply, total = scene.reply, _Sum()
    try:
        async for line in response.content:
            data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                await _finish(scene, total)
                return
            chunk = _object(data)
            if "error" in chunk:
                await reply.error(502, _message_of(data))
                return
            tokens = total.add(chunk)
            is_only_usage = not chunk.get("choices")
            if chunk and isinstance(reply, StreamedReply) and (scene.chat.include_usage or not is_only_usage):
                await reply.relay(data, tokens)
    except aiohttp.ClientError:
        pass
    # The server behind ended early: so does this answer.
    reply.cut()


async def _finish(scene: Scene, total: _Sum) -> None:
    if isinstance(scene.reply, StreamedReply):
        await scene.reply.raw(DONE)
        await scene.reply.end()
    elif isinstance(scene.reply, WholeReply):
        await scene.reply.finish_with(total.message, total.reason or "stop", total.usage, total.tokens)


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object, or an empty one where a line holds none."""
    try:
        value = json.loads(data) if data else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _message_of(body: bytes) -> str:
    """The message of an error body in the OpenAI form, else the body's beginning."""
    error = _object(body).get("error")
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    return body[:500].decode("utf-8", "replace") or "the model server failed"
