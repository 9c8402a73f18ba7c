"""The event log: how fast it is written, and how fast it is read again."""

from __future__ import annotations

import socket
import sqlite3
import statistics
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.bare_server import BareServer
from benchmarks.filled_store import fill_run, open_writer, say, start
from benchmarks.table import Table
from core.events import Event
from core.store.database import open_database
from core.store.feed import FeedHub
from tests.support.api_client import make_token
from tests.support.model_server import ModelServer
from tests.support.servers import ServerProcess

THREADS = 4
_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
Row = tuple[object, ...]


class _Noting(FeedHub):
    """Notes what each commit wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[list[Row]] = []

    def publish(self, new: list[Event], encoded: list[str]) -> None:
        self.groups.append(
            [(e.run_id, e.seq, e.type.value, e.at, e.turn_id, e.goal_id, e.call_id, data)
             for e, data in zip(new, encoded, strict=True)]
        )  # fmt: skip


def _ours(count: int) -> tuple[float, list[list[Row]]]:
    """Seconds until all that several threads emit is durable, and the groups in which it was committed."""
    with tempfile.TemporaryDirectory() as folder:
        hub = _Noting()
        with open_writer(Path(folder), hub) as writer:
            begun = start(writer, "s")
            hub.groups.clear()
            news = [[say(begun, number) for number in range(count // THREADS)] for _ in range(THREADS)]
            threads = [threading.Thread(target=lambda part=part: list(map(writer.emit, part))) for part in news]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            writer.transact(lambda _: None).result()
            return time.perf_counter() - began, [group for group in hub.groups if group]


def _raw(groups: list[list[Row]]) -> float:
    """Seconds to insert the same rows in the same groups."""
    with tempfile.TemporaryDirectory() as folder:
        open_database(None, Path(folder)).dispose()
        connection = sqlite3.connect(Path(folder) / "pythonserver.db", isolation_level=None)
        connection.execute("PRAGMA synchronous=NORMAL")
        began = time.perf_counter()
        for group in groups:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, group)
            connection.execute("COMMIT")
        took = time.perf_counter() - began
        connection.close()
        return took


def write(table: Table, count: int, repeats: int) -> None:
    """Events a second that the writer makes durable."""
    ours, floors = [], []
    for _ in range(repeats):
        took, groups = _ours(count)
        ours.append(took / count * 1e6)
        floors.append(_raw(groups) / count * 1e6)
    rate, size = 1e6 / statistics.median(ours), count / len(groups)
    print(f"  {rate:.0f} events/s from {THREADS} threads, about {size:.0f} a commit")
    table.ratio("an event made durable (floor: sqlite3, same groups)", "us", ours, statistics.median(floors), 6)


def _read_all(port: int, path: str, last: int) -> float:
    """Seconds from the request to the last event's frame."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {make_token()}\r\n\r\n".encode())
        end, wanted = b"", f"id: {last}\n".encode()
        while wanted not in end:
            new = sock.recv(1 << 20)
            assert new, "the stream ended too early"
            end = end[-len(wanted) :] + new
    return time.perf_counter() - began


def replay(table: Table, length: int, repeats: int) -> None:
    """Events a second of one reader that wants all of a long run."""
    with ModelServer() as models, tempfile.TemporaryDirectory() as folder:
        run_id = fill_run(Path(folder), length)
        with ServerProcess(Path(folder), models.url, LOG_LEVEL="error") as server:
            with BareServer("replay", Path(folder) / "pythonserver.db", run_id) as bare:
                ours, floors = [], []
                for _ in range(repeats):
                    port = int(server.url.rsplit(":", 1)[1])
                    ours.append(_read_all(port, f"/v1/runs/{run_id}/events", length) / length * 1e6)
                    floors.append(_read_all(bare.port, "/", length) / length * 1e6)
    print(f"  {1e6 / statistics.median(ours):.0f} events/s replayed")
    what = f"an event replayed, {length} over HTTP (floor: SELECT, send)"
    table.ratio(what, "us", ours, statistics.median(floors), 6)
