"""From the stop to the close that the model server sees, in each phase of a call.

Before the headers: ``stopping.py``. While connecting, which no server sees: ``waits.py``.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import floors
from benchmarks.lean_client import LeanClient
from benchmarks.table import Table
from tests.support.raw_server import Peer, RawServer
from tests.support.servers import ServerProcess

_DELTA: Final = b'data: {"choices": [{"index": 0, "delta": {"content": "word "}}]}\n\n'
_WHOLE: Final = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 500}}]})


def _say_hello(peer: Peer) -> None:
    """Half of the handshake: it has heard the client's hello, and says nothing."""
    peer.sock.recv(1)


def _say_piece(peer: Peer) -> None:
    assert peer.read_request()
    peer.begin_stream()
    peer.chunk(_DELTA)


def _say_half(peer: Peer) -> None:
    """As a server does that knows no streaming."""
    assert peer.read_request()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(_WHOLE)}\r\n\r\n"
    peer.send((head + _WHOLE[:1000]).encode())


class Closes:
    """A model server that gets so far with each call, and notes when the caller hangs up."""

    def __init__(self) -> None:
        #: What it does with the next call before it falls silent.
        self.say: Callable[[Peer], None] = _say_hello
        self._seen: dict[int, float] = {}
        self._count = 0
        self.raw = RawServer(self._serve)

    def _serve(self, peer: Peer) -> None:
        self.say(peer)
        peer.reached.set()
        if peer.wait_hang_up():
            self._seen[peer.number] = time.perf_counter()

    def next_peer(self) -> Peer:
        """The call that comes next, once it is in its phase."""
        peer = self.raw.peer(self._count)
        self._count += 1
        assert peer.reached.wait(10)
        return peer

    def seen_at(self, peer: Peer) -> float:
        """``time.perf_counter()`` at which this side saw the hang-up."""
        assert peer.gone.wait(10)
        return self._seen[peer.number]

    def bare(self) -> float:
        """Milliseconds from a bare shutdown of a socket in this phase until it is seen here."""
        with socket.create_connection(("127.0.0.1", self.raw.port)) as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            peer = self.next_peer()
            reader = threading.Thread(target=_read_away, args=(sock,), daemon=True)
            reader.start()
            start = time.perf_counter()
            sock.shutdown(socket.SHUT_RDWR)
            took = (self.seen_at(peer) - start) * 1000
            reader.join(10)
            return took


def _read_away(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def _server(folder: str, url: str) -> ServerProcess:
    return ServerProcess(Path(folder), url, LLM_PROVIDER="openai", LLM_API_KEY="none", LOG_LEVEL="error")


def _measure(table: Table, scheme: str, phases: dict[str, Callable[[Peer], None]], repeats: int) -> None:
    closes = Closes()
    with closes.raw as raw, tempfile.TemporaryDirectory() as folder:
        with _server(folder, f"{scheme}://127.0.0.1:{raw.port}/v1") as server:
            for name, closes.say in phases.items():
                times, floor = _stop_often(server, closes, repeats)
                table.within(f"stop -> the model server sees the close: {name}", "ms", times, floor, (2, 10))


def _stop_often(server: ServerProcess, closes: Closes, repeats: int) -> tuple[list[float], float]:
    """Milliseconds from each POST to the close, and the floor: a bare shutdown, and a POST that finds nothing to do."""
    api, stopper, idle = server.api(), LeanClient(server.url, "alice"), LeanClient(server.url, "idle")
    times, bare = [], []
    for _ in range(repeats):
        run = api.start("stop in this phase")
        peer = closes.next_peer()
        time.sleep(0.01)  # until the caller has read what was said; no event tells of that
        start = time.perf_counter()
        answer, _ = stopper.post(f"{run.path}/cancel")
        assert answer["stopped"] is True
        times.append((closes.seen_at(peer) - start) * 1000)
        run.wait_parked()
        run.terminate()
        bare.append(closes.bare())
    return times, statistics.median(bare) + statistics.median(floors.no_op_post(idle))


def run(table: Table, repeats: int) -> None:
    """Calls that are cut by shutting the socket, in order of their phases."""
    _measure(table, "https", {"TLS": _say_hello}, repeats)
    _measure(table, "http", {"stream": _say_piece, "no stream": _say_half}, repeats)
