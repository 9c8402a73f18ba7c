"""From the stop to the end of what only waits: a pause before a retry, a connection that does not come about.

Nobody outside can see that end, so the server is in this process, and its calls are watched.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import floors
from benchmarks.lean_client import LeanClient
from benchmarks.table import Table
from core.call import Call, CallKind
from tests.support.api_client import Run
from tests.support.model_server import ModelServer, script
from tests.support.raw_server import black_hole
from tests.support.servers import LocalServer, wait_until


class Wake:
    """A thread that waits for an event, and when it was woken."""

    def __init__(self, event: threading.Event) -> None:
        self._event, self._at = event, 0.0
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self._event.wait()
        self._at = time.perf_counter()

    def at(self) -> float:
        """``time.perf_counter()`` when it was woken."""
        self._thread.join(30)
        assert not self._thread.is_alive(), "the wait goes on"
        return self._at


class _Stops:
    """A server in this process, and what a stop of one of its calls costs."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self.api = server.api()
        self._stopper, self._idle = LeanClient(server.url, "alice"), LeanClient(server.url, "idle")

    def stop(self, run: Run, kind: CallKind) -> float:
        """Milliseconds from the POST until the run's only call, of that kind, has ended."""
        wake = Wake(self._only_call(run, kind).ended)
        start = time.perf_counter()
        answer, _ = self._stopper.post(f"{run.path}/cancel")
        assert answer["stopped"] is True
        took = (wake.at() - start) * 1000
        run.wait_parked()
        run.terminate()
        return took

    def _only_call(self, run: Run, kind: CallKind) -> Call:
        turn = self._server.main.engine.live_turn(run.id)
        assert turn is not None
        found: list[Call] = [call for call in turn.calls.snapshot() if call.kind is kind]
        assert len(found) == 1
        return found[0]

    def floor(self, repeats: int) -> float:
        """Milliseconds: a thread woken by an event, and a POST that finds nothing to do."""
        wake = statistics.median(_bare_wake() for _ in range(repeats))
        no_op = statistics.median(floors.no_op_post(self._idle))
        print(f"  no-op POST {no_op:.2f} ms, event set -> wake {wake:.3f} ms")
        return no_op + wake


def _bare_wake() -> float:
    event = threading.Event()
    wake = Wake(event)
    time.sleep(0.002)  # until it waits; no event tells of that
    start = time.perf_counter()
    event.set()
    return (wake.at() - start) * 1000


@contextmanager
def _serving(url: str) -> Iterator[_Stops]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request, among those of the table
    with tempfile.TemporaryDirectory() as folder:
        with LocalServer(Path(folder), url, llm_provider="openai", log_level="error") as server:
            yield _Stops(server)


def retries(table: Table, repeats: int) -> None:
    """The model server asks for 50 s, so only the stop ends the wait."""
    with ModelServer() as models, _serving(f"{models.url}/v1") as stops:
        times = []
        for _ in range(repeats + 1):
            run = stops.api.start(script("busy", retry_after_s=50))
            run.wait_event("retry")
            times.append(stops.stop(run, CallKind.WAIT))
        table.within("stop -> end of a retry wait", "ms", times[1:], stops.floor(repeats), (2, 10))


def connects(table: Table, repeats: int) -> None:
    """Nobody accepts. The kernel's table says that the attempt is over too."""
    with black_hole() as port, _serving(f"http://127.0.0.1:{port}/v1") as stops:
        others, times, left = _connecting(port), [], []
        for _ in range(repeats + 1):
            run = stops.api.start("stop while connecting")
            wait_until(lambda: _connecting(port) > others, "the server connects")
            times.append(stops.stop(run, CallKind.MODEL_CALL))
            left.append(_connecting(port) - others)
        table.within("stop -> end of an attempt to connect", "ms", times[1:], stops.floor(repeats), (2, 10))
        table.within("the same: attempts that the kernel goes on with", "", left, 0, (0, 0))


def _connecting(port: int) -> int:
    """How many connects to a port are under way on this machine."""
    end, state = f":{port:04X}", "02"
    rows = (line.split()[:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(row[2].endswith(end) and row[3] == state for row in rows)


def run(table: Table, repeats: int) -> None:
    """Both."""
    retries(table, repeats)
    connects(table, repeats)
