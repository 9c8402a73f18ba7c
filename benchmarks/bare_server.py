"""Bare servers, each in a process of its own: what pushing frames costs at least.

``push COUNT RATE SECONDS``: one thread that writes each frame to COUNT sockets. ``replay DATABASE RUN_ID``: SELECT, and
write to a socket. Both say their port first.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

PAGE = 500


class BareServer:
    """The process. A context manager."""

    def __init__(self, *orders: object) -> None:
        command = [sys.executable, "-m", "benchmarks.bare_server", *map(str, orders)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = self.answer()
        self.url = f"http://127.0.0.1:{self.port}"

    def answer(self) -> Any:
        """The next line that it says."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> BareServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _listen() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(listener.getsockname()[1], flush=True)
    return listener


def _take(listener: socket.socket) -> socket.socket:
    sock, _ = listener.accept()
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: connected\n\n")
    return sock


def push(count: int, rate: int, seconds: int) -> None:
    """To ``count`` clients, ``rate`` frames a second."""
    sockets = [_take(listener) for listener in [_listen()] for _ in range(count)]
    began = time.monotonic()
    for seq in range(1, rate * seconds + 1):
        time.sleep(max(0.0, began + seq / rate - time.monotonic()))  # a pace, not a wait for something
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = "text" if seq < rate * seconds else "awaiting_input"
        head = {"seq": seq, "type": event, "at": at, "run_id": "r" * 28, "turn_id": "t" * 28, "goal_id": "main"}
        data = json.dumps({**head, "text": "word "}, separators=(",", ":"))
        frame = f"id: {seq}\nevent: {event}\ndata: {data}\n\n".encode()
        for sock in sockets:
            sock.sendall(frame)


def threads(count: int) -> None:
    """Say the KiB of a thread that is blocked, then wait to be killed."""
    print(0, flush=True)
    before = _memory()
    never = threading.Event()
    for _ in range(count):
        threading.Thread(target=never.wait, daemon=True).start()
    print((_memory() - before) / count, flush=True)
    never.wait()


def _memory() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def replay(database: str, run_id: str) -> None:
    """The rows of a run in order, page by page, to each client that comes."""
    connection = sqlite3.connect(database)
    query = "SELECT * FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
    listener = _listen()
    while True:
        sock, after = _take(listener), 0
        while rows := connection.execute(query, (run_id, after, PAGE)).fetchall():
            after = rows[-1][1]
            sock.sendall("".join(f"id: {row[1]}\nevent: {row[2]}\ndata: {row}\n\n" for row in rows).encode())
        sock.close()


if __name__ == "__main__":
    what, *orders = sys.argv[1:]
    if what == "replay":
        replay(*orders)
    elif what == "push":
        push(*map(int, orders))
    else:
        threads(*map(int, orders))
