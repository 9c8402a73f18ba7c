"""The gateway's HTTP server: routes and life.

aiohttp's low-level server without router and middleware: a stop of a thousand calls is a thousand
requests at once, and its handlers are cancelled in the moment in which a client hangs up.
"""

import asyncio
import resource
import signal
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from de2generator.gateway import Behaviour, Gateway, json_answer
from de2generator.log_routes import LogRoutes
from de2generator.model_list import Models
from de2generator.openai_wire import error_body

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_BACKLOG = 2048


async def healthz(_request: web.BaseRequest) -> web.StreamResponse:
    """``GET /healthz``."""
    return json_answer({"status": "ok"})


def make_server(behaviour: Behaviour, more_routes: Mapping[tuple[str, str], Handler] | None = None) -> web.Server:
    """A server with every route; ``more_routes`` replace the ones made here. Needs a running event loop."""
    gateway = Gateway(behaviour)
    log = LogRoutes(gateway)
    routes: dict[tuple[str, str], Handler] = {
        ("POST", "/v1/chat/completions"): gateway.chat,
        ("POST", "/v1/messages"): gateway.messages,
        ("POST", "/v1/cancel"): gateway.cancel,
        ("GET", "/v1/models"): Models(behaviour.models).show,
        ("GET", "/log"): log.show,
        ("DELETE", "/log"): log.clear,
        ("GET", "/log/wait"): log.wait,
        ("GET", "/log/stream"): log.stream,
        ("GET", "/healthz"): healthz,
        **(more_routes or {}),
    }
    paths = {path for _, path in routes}

    async def dispatch(request: web.BaseRequest) -> web.StreamResponse:
        handler = routes.get((request.method, request.path))
        if handler is not None:
            return await handler(request)
        status = 405 if request.path in paths else 404
        return json_answer(error_body(status, f"no route {request.method} {request.path}"), status)

    return web.Server(dispatch, handler_cancellation=True, access_log=None, keepalive_timeout=600)


async def serve(server: web.Server, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; prints one line when ready. ``OSError`` if the address is taken."""
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        print(f"de2generator listening on http://{host}:{runner.addresses[0][1]}", flush=True)
        await _wait_for_signal()
    finally:
        await runner.cleanup()


def raise_file_limit() -> None:
    """A call is an open file: allow as many as the system does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _wait_for_signal() -> None:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    await asked.wait()
