"""The two kinds of answer: in chunks, and in one piece."""

import asyncio
from typing import Any

from aiohttp import web

from de2generator.call_log import CallLog
from de2generator.chat_request import ChatRequest
from de2generator.logged_call import LoggedCall
from de2generator.openai_wire import DONE, Message, Wire
from de2generator.reply import Reply, WireForm


class StreamedReply(Reply):
    """An answer in chunks."""

    _has_role = False
    _wire: Wire

    def __init__(self, request: web.BaseRequest, chat: ChatRequest, call: LoggedCall, log: CallLog) -> None:
        super().__init__(request, chat, call, log, _wire_of(chat, call))

    async def text(self, piece: str) -> None:
        """One chunk."""
        await self._write(self._wire.delta({"content": piece}), 1)

    async def reasoning(self, piece: str) -> None:
        """One chunk."""
        await self._write(self._wire.delta({"reasoning_content": piece}), 1)

    async def tool_call(self, index: int, name: str, arguments: str, pause_s: float) -> None:
        """A chunk with id and name, then the arguments in pieces of 24 characters."""
        head = {"index": index, "id": self.tool_call_id(index), "type": "function"}
        opening = {**head, "function": {"name": name, "arguments": ""}}
        await self._write(self._wire.delta({"tool_calls": [opening]}), 1)
        for start in range(0, len(arguments), 24):
            await asyncio.sleep(pause_s)
            piece = {"index": index, "function": {"arguments": arguments[start : start + 24]}}
            await self._write(self._wire.delta({"tool_calls": [piece]}), 1)

    async def finish(self, reason: str = "stop") -> None:
        """The finish reason, the usage if it was asked for, and ``[DONE]``."""
        ending = b"" if self._has_role else self._wire.role()
        ending += self._wire.finish(reason)
        if self._chat.include_usage:
            ending += self._wire.usage(self.usage())
        await self.raw(ending + DONE)
        await self.end()

    def said(self, text: str) -> tuple[bytes, bytes]:
        """See :meth:`de2generator.reply.Reply.said`."""
        ending = self._wire.finish("stop")
        if self._chat.include_usage:
            ending += self._wire.usage(self.usage())
        return self._wire.role() + self._wire.delta({"content": text}), ending + DONE

    async def relay(self, chunk: bytes, tokens: int) -> None:
        """Pass on a chunk that another server made."""
        self._has_role = True
        await self.raw(b"data: " + chunk + b"\n\n", tokens)

    async def _write(self, frame: bytes, tokens: int) -> None:
        if not self._has_role:
            self._has_role = True
            frame = self._wire.role() + frame
        await self.raw(frame, tokens)


class WholeReply(Reply):
    """An answer in one piece: kept back until it is finished."""

    def __init__(
        self,
        request: web.BaseRequest,
        chat: ChatRequest,
        call: LoggedCall,
        log: CallLog,
        wire: WireForm | None = None,
    ) -> None:
        super().__init__(request, chat, call, log, wire or _wire_of(chat, call))
        self.message = Message()
        self._tokens = 0

    async def text(self, piece: str) -> None:
        """Keep it."""
        self.message.text.append(piece)
        self._tokens += 1

    async def reasoning(self, piece: str) -> None:
        """Keep it."""
        self.message.reasoning.append(piece)
        self._tokens += 1

    async def tool_call(self, index: int, name: str, arguments: str, pause_s: float) -> None:
        """Keep it, after the time that streaming it would take."""
        await asyncio.sleep(pause_s * (len(arguments) // 24 + 1))
        function = {"name": name, "arguments": arguments}
        call_id = self.tool_call_id(index)
        self.message.tool_calls.append({"id": call_id, "type": "function", "function": function})
        self._tokens += 1

    async def finish(self, reason: str = "stop") -> None:
        """Answer with everything that was kept."""
        usage = self.usage()
        usage["completion_tokens"] = self._tokens
        usage["total_tokens"] = usage["prompt_tokens"] + self._tokens
        await self.finish_with(self.message, reason, usage, self._tokens)

    def said(self, text: str) -> tuple[bytes, bytes]:
        """See :meth:`de2generator.reply.Reply.said`."""
        return self._wire.whole(Message([text]), "stop", None), b""

    async def finish_with(self, message: Message, reason: str, usage: dict[str, Any] | None, tokens: int) -> None:
        """Answer with a message made elsewhere."""
        await self.whole(200, self._wire.whole(message, reason, usage), tokens=tokens)


def _wire_of(chat: ChatRequest, call: LoggedCall) -> Wire:
    return Wire(f"chatcmpl-{call.id}", chat.model, include_usage=chat.include_usage)
