"""The two kinds of answer in the form of the Anthropic Messages API: in events, and in one piece."""

import asyncio

from aiohttp import web

from de2generator.anthropic_wire import AnthropicWire
from de2generator.call_log import CallLog
from de2generator.chat_request import ChatRequest
from de2generator.logged_call import LoggedCall
from de2generator.replies import WholeReply
from de2generator.reply import Reply


class StreamedMessage(Reply):
    """An answer in events. Blocks follow one another; at most one is open."""

    _wire: AnthropicWire

    def __init__(self, request: web.BaseRequest, chat: ChatRequest, call: LoggedCall, log: CallLog) -> None:
        super().__init__(request, chat, call, log, _wire_of(chat, call))
        self._has_started = False
        #: What the open block is: ``text``, ``thinking``, ``tool_use``, or "" for none.
        self._kind = ""
        self._index = -1

    async def text(self, piece: str) -> None:
        """One delta."""
        await self._write(self._in_block("text") + self._wire.text(self._index, piece), 1)

    async def reasoning(self, piece: str) -> None:
        """One delta."""
        await self._write(self._in_block("thinking") + self._wire.thinking(self._index, piece), 1)

    async def tool_call(self, index: int, name: str, arguments: str, pause_s: float) -> None:
        """The start of a block, an empty delta, then the arguments in pieces of 24 characters."""
        before = self._close_block()
        self._kind, self._index = "tool_use", self._index + 1
        opening = self._wire.open_tool_use(self._index, self.tool_call_id(index), name)
        await self._write(before + opening + self._wire.arguments(self._index, ""), 1)
        for start in range(0, len(arguments), 24):
            await asyncio.sleep(pause_s)
            await self._write(self._wire.arguments(self._index, arguments[start : start + 24]), 1)
        await self._write(self._close_block())

    async def finish(self, reason: str = "stop") -> None:
        """The end of the open block, the stop reason with the usage, and ``message_stop``."""
        await self._write(self._close_block() + self._wire.finish(reason, self.usage()))
        await self.end()

    def said(self, text: str) -> tuple[bytes, bytes]:
        """See :meth:`de2generator.reply.Reply.said`."""
        wire, usage = self._wire, self.usage()
        beginning = wire.start(usage) + wire.open_text(0) + wire.text(0, text)
        return beginning, wire.close_block(0, "text") + wire.finish("stop", usage)

    def _in_block(self, kind: str) -> bytes:
        """The events after which a block of this kind is open."""
        if self._kind == kind:
            return b""
        before = self._close_block()
        self._kind, self._index = kind, self._index + 1
        return before + (self._wire.open_text if kind == "text" else self._wire.open_thinking)(self._index)

    def _close_block(self) -> bytes:
        kind, self._kind = self._kind, ""
        return self._wire.close_block(self._index, kind) if kind else b""

    async def _write(self, events: bytes, tokens: int = 0) -> None:
        if not self._has_started:
            self._has_started = True
            events = self._wire.start(self.usage()) + events
        await self.raw(events, tokens)


class WholeMessage(WholeReply):
    """An answer in one piece."""

    def __init__(self, request: web.BaseRequest, chat: ChatRequest, call: LoggedCall, log: CallLog) -> None:
        super().__init__(request, chat, call, log, _wire_of(chat, call))


def _wire_of(chat: ChatRequest, call: LoggedCall) -> AnthropicWire:
    return AnthropicWire(f"msg_{call.id}", chat.model)
