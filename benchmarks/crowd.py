"""Many readers of event streams in a process of their own: one thread, one epoll, so that the reading is not what is
measured. Started by :class:`Crowd`; it gets its orders as one line of JSON and answers with lines of JSON.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from array import array
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from benchmarks.table import percentile

_AT = b'"at":"'
#: ``2026-11-29T23:37:46.120Z``
_AT_LENGTH = 24


class Crowd:
    """``count`` readers of ``path``, all connecting at once. Each is done when it has read ``until``, or was closed."""

    def __init__(self, url: str, path: str, token: str, count: int, until: str) -> None:
        self.count = count
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.crowd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        place = urlsplit(url)
        self._orders = {
            "host": place.hostname, "port": place.port, "path": path, "token": token, "count": count, "until": until
        }  # fmt: skip
        assert self._answer() == "here"

    def begin(self) -> None:
        """Let them connect, now."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._orders) + "\n")
        self._process.stdin.flush()

    def wait_open(self) -> None:
        """Until each has had the first bytes of its answer."""
        assert self._answer() == "open"

    def result(self) -> Report:
        """What they saw; waits until all are done."""
        answer = self._answer()
        report = Report(**(self._answer() if answer == "open" else answer))
        assert self._process.wait(30) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()
        return report

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the readers' process has ended"
        return json.loads(line)


class Report:
    """What a crowd saw. Times are ``time.time()``."""

    def __init__(self, lags: list[float], events: int, done: int, began_at: float, ended_at: float) -> None:
        #: Milliseconds from an event's ``at`` to its arrival: the quantiles in steps of a thousandth.
        self.lags = lags
        #: Events that came, all readers together.
        self.events = events
        #: Readers that came to the end.
        self.done = done
        self.took_s = ended_at - began_at


class _Readers:
    """The other process."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._until = orders["until"].encode()
        self._request = (
            f"GET {orders['path']} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {orders['token']}\r\n\r\n"
        ).encode()
        self._is_stream = "/events" in orders["path"]
        self._place = (orders["host"], orders["port"])
        self._count = orders["count"]
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._pending: dict[int, bytes] = {}
        # Readers of one run get the same bytes: what they say is worked out once.
        self._known: dict[bytes, tuple[list[float], bool]] = {}
        self._lags = array("d")
        self._done = 0

    def run(self) -> None:
        """Connect, read, report."""
        began_at = time.time()
        for _ in range(self._count):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(self._place)
            self._sockets[sock.fileno()] = sock
            self._epoll.register(sock.fileno(), select.EPOLLOUT)
        is_open = False
        while self._sockets:
            for fd, event in self._epoll.poll():
                self._serve(fd, event)
            if not is_open and len(self._pending) == self._count:
                is_open = True
                _say("open")
        if not is_open:
            _say("open")
        _say(self._report(began_at))

    def _serve(self, fd: int, event: int) -> None:
        sock = self._sockets[fd]
        if event & select.EPOLLOUT:
            sock.send(self._request)
            self._epoll.modify(fd, select.EPOLLIN)
            return
        new = sock.recv(1 << 18)
        now = time.time()
        data = self._pending.get(fd, b"") + new
        cut = len(b"".join(data.rpartition(b"\n\n")[:2])) if self._is_stream else len(data)
        whole, self._pending[fd] = data[:cut], data[cut:]  # no frame is cut in two
        ats, is_last = self._read(whole)
        self._lags.extend([(now - at) * 1000 for at in ats])
        if is_last or not new:
            self._done += is_last
            self._epoll.unregister(fd)
            self._sockets.pop(fd).close()

    def _read(self, whole: bytes) -> tuple[list[float], bool]:
        known = self._known.get(whole)
        if known is None:
            ats = [
                datetime.fromisoformat(part[:_AT_LENGTH].decode()).timestamp()
                for part in whole.split(_AT)[1:]
            ]  # fmt: skip
            known = (ats, self._until in whole)
            if len(self._known) > 5000:
                self._known.clear()
            self._known[whole] = known
        return known

    def _report(self, began_at: float) -> dict[str, Any]:
        ordered = sorted(self._lags)
        return {
            "lags": [percentile(ordered, step / 1000) for step in range(1001)] if ordered else [],
            "events": len(ordered), "done": self._done, "began_at": began_at, "ended_at": time.time(),
        }  # fmt: skip


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    _say("here")
    _Readers(json.loads(sys.stdin.readline())).run()
