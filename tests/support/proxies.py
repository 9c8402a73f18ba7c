"""Proxies between the server and the model: one that clients are told of, and one that stands in the model's place."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tests.support.raw_server import PATIENCE_S


class ForwardProxy:
    """What ``http_proxy`` and ``https_proxy`` name: tunnels for https, requests with the whole address for http."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        #: First lines of the requests.
        self.lines: list[str] = []
        self._holds_tunnels = False

    def hold_tunnels(self) -> None:
        """From now on, never answer a CONNECT."""
        self._holds_tunnels = True

    def wait_lines(self, number: int) -> list[str]:
        """Until so many requests have come; their first lines."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= number, PATIENCE_S), "nobody came"
            return list(self.lines)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="forward-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # a close alone would wake nobody
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), name="proxy-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := client.recv(65536)):
                    return
                head += data
            head, _, body = head.partition(b"\r\n\r\n")
            line, _, headers = head.decode("latin-1").partition("\r\n")
            with self._changed:
                self.lines.append(line)
                self._sockets.append(client)
                self._changed.notify_all()
            method, target, version = line.split(" ")
            if method == "CONNECT" and self._holds_tunnels:
                while client.recv(65536):
                    pass
                return
            parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
            with socket.create_connection((parts.hostname or "", parts.port or 80)) as server:
                self._sockets.append(server)
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    # One request a connection: a second one would come with its whole address again.
                    path = parts.path + (f"?{parts.query}" if parts.query else "")
                    fresh = f"{method} {path} {version}\r\nConnection: close\r\n{headers}\r\n\r\n"
                    server.sendall(fresh.encode("latin-1") + body)
                _join(client, server)


def _join(client: socket.socket, server: socket.socket) -> None:
    back = threading.Thread(target=_pass_on, args=(server, client), name="proxy-answer", daemon=True)
    back.start()
    _pass_on(client, server)
    back.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Until either side has ended; then both are."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


class ReverseProxy:
    """Stands where the model should be: reads each request whole, makes one of its own, and streams the answer on.

    As nginx and its like do: a client that hangs up makes it hang up on the model.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._held: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = threading.Condition()
        self._paths: list[str] = []
        self._gone = 0
        self.url = ""

    def hold(self, path: str) -> None:
        """Requests for ``path`` are never answered from now on."""
        self._held.add(path)

    def let_through(self, path: str) -> None:
        """New requests for ``path`` are handed on again."""
        self._held.discard(path)

    def wait_request(self, path: str, number: int = 1) -> None:
        """Until so many requests for ``path`` have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._paths.count(path) >= number, PATIENCE_S), self._paths

    def wait_gone(self, number: int = 1) -> None:
        """Until so many clients have hung up before their answer was whole."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._gone >= number, PATIENCE_S), "nobody hung up"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, name="reverse-proxy", daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _open(self) -> str:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)
        self._runner = web.ServerRunner(
            web.Server(self._handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        with self._changed:
            self._paths.append(request.path)
            self._changed.notify_all()
        try:
            if request.path in self._held:
                await asyncio.Event().wait()
            return await self._hand_on(request)
        except (asyncio.CancelledError, ConnectionError):
            with self._changed:
                self._gone += 1
                self._changed.notify_all()
            raise

    async def _hand_on(self, request: web.BaseRequest) -> web.StreamResponse:
        ours = {"host", "connection", "content-length", "transfer-encoding"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ours}
        upstream = await self._session.request(
            request.method, self._target + request.path_qs, data=await request.read(), headers=headers
        )
        try:
            answer = web.StreamResponse(status=upstream.status)
            for name in ("Content-Type", "Retry-After"):
                if name in upstream.headers:
                    answer.headers[name] = upstream.headers[name]
            await answer.prepare(request)
            async for piece in upstream.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer
        finally:
            upstream.close()  # what was not read to its end must not go on
