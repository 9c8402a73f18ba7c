"""A door before the gateway that a test can lock, unlock, or make swallow what comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.raw_server import PATIENCE_S


class Front:
    """Hands connections on to ``target``. ``port`` 0: a free one; it stays the same over ``close`` and ``open``."""

    def __init__(self, target: str, port: int = 0) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener: socket.socket | None = None
        self._swallows = False
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._arrived = 0
        self._port = port
        self.open()
        self.url = f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Let connections in and through."""
        self._swallows = False
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._port), backlog=512)
            self._port = self._listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(self._listener,), name="front", daemon=True).start()

    def swallow(self) -> None:
        """Let connections in and never answer them."""
        self._swallows = True

    def close(self) -> None:
        """Refuse new connections, and cut the ones that are open."""
        if self._listener is not None:
            # A close alone would not wake the thread in accept().
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._changed:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def wait_arrived(self, number: int) -> None:
        """Until so many connections have come, all in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._arrived >= number, PATIENCE_S), "nobody came"

    def __enter__(self) -> Front:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                self._sockets.append(client)
                self._arrived += 1
                self._changed.notify_all()
            serve = self._hold if self._swallows else self._join
            threading.Thread(target=serve, args=(client,), name="front-connection", daemon=True).start()

    @staticmethod
    def _hold(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while client.recv(65536):
                pass

    def _join(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            with self._changed:
                self._sockets.append(server)
            back = threading.Thread(target=_pass_on, args=(server, client), name="front-answer", daemon=True)
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
