"""What tests and benches ask the gateway: its log, waits on it, and a stream of its events.

``GET /log`` → ``{"calls": [...]}``, one object a call in order of arrival: ``id, token, script, key,
model, stream, messages, tools, must_call, started_at, status, first_byte_at, asked_to_cancel_at,
closed_at, close_reason, bytes_sent, tokens_sent, tokens_after_stop``. ``bytes_sent`` counts body bytes.
Query: ``open=1`` only open calls, ``key=K`` only calls whose script line has that key, ``times=1`` adds
``token_times``, ``brief=1`` leaves out messages and tools.

``DELETE /log[?key=K]`` → ``{"cleared": N}`` forgets closed calls and what ``busy`` has counted.

``GET /log/wait?…&timeout_s=20`` → 200 as ``GET /log``, as soon as the condition holds, woken and not
polled; 408 with the same body when the time was over first. The conditions are those of
:class:`~de2generator.call_counts.Condition`: ``calls, open, open_exactly, closed, asked, tokens, key``.

``GET /log/stream`` → server-sent events ``{"event": "opened|asked_to_cancel|closed", "call":
{…brief…}}``, each written in the moment it happens; the first line is a comment, sent once the stream is
attached.
"""

import asyncio

from aiohttp import web

from de2generator.call_counts import Condition
from de2generator.errors import BadRequestError
from de2generator.gateway import Gateway, bad_request, json_answer
from de2generator.logged_call import LoggedCall
from de2generator.openai_wire import encode

_NUMBERS = ("calls", "open", "open_exactly", "closed", "asked", "tokens")


class LogRoutes:
    """The handlers; see the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /log``."""
        return self._answer(request, 200)

    async def clear(self, request: web.BaseRequest) -> web.StreamResponse:
        """``DELETE /log``."""
        return json_answer({"cleared": self._gateway.forget(request.query.get("key", ""))})

    async def wait(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /log/wait``."""
        try:
            condition, timeout_s = _condition(request)
        except BadRequestError as error:
            return bad_request(str(error))
        is_met = await self._log.wait(condition, timeout_s)
        return self._answer(request, 200 if is_met else 408, is_open_filter=False)

    async def stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /log/stream``; lasts until the client hangs up."""
        events: asyncio.Queue[bytes] = asyncio.Queue()

        def listener(event: str, call: LoggedCall) -> None:
            data = encode({"event": event, "call": call.as_json(with_messages=False)})
            events.put_nowait(b"data: " + data + b"\n\n")

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        leave = self._log.listen(listener)
        try:
            await response.prepare(request)
            await response.write(b": attached\n\n")
            while True:
                await response.write(await events.get())
        finally:
            leave()

    def _answer(self, request: web.BaseRequest, status: int, *, is_open_filter: bool = True) -> web.Response:
        query = request.query
        only_open = is_open_filter and query.get("open") == "1"
        calls = [
            call.as_json(with_messages=query.get("brief") != "1", with_token_times=query.get("times") == "1")
            for call in self._log.calls(query.get("key", ""), only_open=only_open)
        ]
        return json_answer({"calls": calls}, status)


def _condition(request: web.BaseRequest) -> tuple[Condition, float]:
    query = request.query
    try:
        numbers = {name: int(query[name]) for name in _NUMBERS if name in query}
        timeout_s = float(query.get("timeout_s", "20"))
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    if not numbers:
        raise BadRequestError(f"name what to wait for: {', '.join(_NUMBERS)}")
    return Condition(key=query.get("key", ""), **numbers), timeout_s
