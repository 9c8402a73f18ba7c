"""The gateway: takes calls, plays their scripts, cancels them by token."""

import asyncio
import functools
import json
from collections import Counter, defaultdict
from dataclasses import dataclass

from aiohttp import web

from de2generator import believable
from de2generator.call_log import CallLog
from de2generator.chat_request import ChatRequest
from de2generator.dialect import ANTHROPIC, OPENAI, Dialect
from de2generator.errors import BadRequestError
from de2generator.logged_call import CloseReason, LoggedCall
from de2generator.openai_wire import encode, error_body
from de2generator.replies import WholeReply
from de2generator.scene import CancelManner, Scene, Script, for_ever
from de2generator.script_line import ScriptLine
from de2generator.script_table import SCRIPTS, cancel_manner


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a gateway answers where the request does not say."""

    #: Answers requests without a script line.
    default: Script = believable.answer
    #: Whether script lines count; if not, they are text like any other.
    plays_scripts: bool = True
    #: Refuse every request whose messages are out of order.
    is_strict: bool = False
    tokens_per_second: float = 20.0
    #: What ``/v1/models`` lists; other names are answered all the same.
    models: tuple[str, ...] = ("stand-in",)


class Gateway:
    """One gateway; its methods run in the event loop's thread."""

    #: How many cancelled tokens are remembered, for ``already_cancelled``.
    MOST_REMEMBERED = 20_000

    def __init__(self, behaviour: Behaviour) -> None:
        self.log = CallLog()
        self._behaviour = behaviour
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._open: defaultdict[str, list[Scene]] = defaultdict(list)
        self._cancelled: dict[str, None] = {}

    async def chat(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        return await self._answer(request, OPENAI)

    async def messages(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /v1/messages``: the Anthropic form. Its calls have no token, so they cannot be cancelled by one."""
        if "anthropic-version" not in request.headers:
            return bad_request("anthropic-version: the header is required", ANTHROPIC)
        return await self._answer(request, ANTHROPIC)

    async def _answer(self, request: web.BaseRequest, dialect: Dialect) -> web.StreamResponse:
        started_at = self.log.now()
        try:
            chat = dialect.parse(await request.read())
            line = (self._behaviour.plays_scripts and chat.script) or ScriptLine("")
            act = SCRIPTS[line.name] if line.name else self._behaviour.default
        except BadRequestError as error:
            return bad_request(str(error), dialect)
        except KeyError as error:
            return bad_request(f"unknown script {error}; known are {', '.join(SCRIPTS)}", dialect)
        scene = self._enter(request, dialect, chat, line, started_at)
        try:
            return await self._play(scene, self._refuse if self._is_out_of_order(scene) else act)
        finally:
            self._leave(scene)

    async def cancel(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /v1/cancel``."""
        try:
            token = _cancellation_token(await request.read())
        except BadRequestError as error:
            return bad_request(str(error))
        scenes = self._open.get(token)
        if not scenes:
            return _status("already_cancelled") if token in self._cancelled else _status("unknown", 404)
        for scene in scenes:
            self.log.note_asked(scene.call)
        match scenes[0].manner:
            case CancelManner.DEAF:
                await for_ever()
            case CancelManner.REFUSE:
                return json_answer(error_body(500, "cannot cancel now"), 500)
        was_first = [scene.cancel() for scene in scenes]
        self._remember(token)
        return _status("cancelled" if any(was_first) else "already_cancelled")

    def forget(self, key: str) -> int:
        """Clear the closed calls from the log, and what ``busy`` has counted."""
        for place in [place for place in self._refusals if key in {"", place[1]}]:
            del self._refusals[place]
        return self.log.clear(key)

    def _enter(
        self, request: web.BaseRequest, dialect: Dialect, chat: ChatRequest, line: ScriptLine, started_at: float
    ) -> Scene:
        call = LoggedCall(
            id=self.log.new_id(),
            token=chat.token,
            script=line.name,
            key=line.text("key"),
            model=chat.model,
            stream=chat.stream,
            messages=chat.messages,
            tools=chat.tool_names,
            must_call=chat.must_call,
            started_at=started_at,
        )

        def make_whole() -> WholeReply:
            return dialect.whole(request, chat, call, self.log)

        scene = Scene(
            chat=chat,
            call=call,
            reply=dialect.streamed(request, chat, call, self.log) if chat.stream else make_whole(),
            line=line,
            make_whole=make_whole,
            refusals=self._refusals,
            tokens_per_second=self._behaviour.tokens_per_second,
            find_fault=functools.partial(dialect.find_fault, chat),
            manner=cancel_manner(line),
            task=asyncio.current_task(),
        )
        if chat.token is not None:
            self._open[chat.token].append(scene)
        self.log.add(call)
        return scene

    async def _play(self, scene: Scene, act: Script) -> web.StreamResponse:
        """Run the script; whatever it does, the log says how the call ended."""
        reason = CloseReason.DROPPED
        try:
            try:
                await act(scene)
                reason = scene.reply.close_reason
            except BadRequestError as error:
                await scene.reply.error(400, str(error))
                reason = scene.reply.close_reason
            except asyncio.CancelledError:
                # Two cancel the task: our own /v1/cancel, and aiohttp when the client hangs up.
                if not scene.is_cancelled or scene.reply.is_client_gone or scene.task is None:
                    raise
                scene.task.uncancel()
                await scene.reply.cancelled()
                reason = CloseReason.CANCELLED
        except asyncio.CancelledError:
            reason = CloseReason.CLIENT_GONE
            raise
        except ConnectionError:
            reason = CloseReason.CLIENT_GONE
        finally:
            self.log.close(scene.call, reason)
        # aiohttp finds the connection of a cut answer closed and lets it be.
        return scene.reply.response or web.Response()

    def _leave(self, scene: Scene) -> None:
        token = scene.call.token
        if token is not None and token in self._open:
            self._open[token].remove(scene)
            if not self._open[token]:
                del self._open[token]

    def _is_out_of_order(self, scene: Scene) -> bool:
        return self._behaviour.is_strict and scene.find_fault() is not None

    @staticmethod
    async def _refuse(scene: Scene) -> None:
        await scene.reply.error(400, scene.find_fault() or "")

    def _remember(self, token: str) -> None:
        self._cancelled[token] = None
        if len(self._cancelled) > self.MOST_REMEMBERED:
            del self._cancelled[next(iter(self._cancelled))]


def bad_request(message: str, dialect: Dialect = OPENAI) -> web.Response:
    """400 in the form of the request."""
    return json_answer(dialect.error_body(400, message), 400)


def _cancellation_token(raw: bytes) -> str:
    try:
        token = json.loads(raw)["cancellation_token"]
    except (ValueError, KeyError, TypeError):
        token = None
    if not isinstance(token, str) or not token:
        raise BadRequestError('the body must be {"cancellation_token": "…"}')
    return token


def _status(status: str, code: int = 200) -> web.Response:
    return json_answer({"status": status}, code)


def json_answer(value: object, status: int = 200) -> web.Response:
    """An answer in JSON."""
    return web.Response(body=encode(value), status=status, content_type="application/json")
