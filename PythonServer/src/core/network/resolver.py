"""Name look-up that does not hold its caller.

``getaddrinfo`` cannot be interrupted. It runs on one of a few daemon threads; the caller waits for the answer
or for a stop. A look-up that nobody waits for any more runs to its end there.
"""

import contextlib
import ipaddress
import socket
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

from core.cancellation import Scope

#: What ``socket.getaddrinfo`` gives: family, type, protocol, canonical name, address.
AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
_Key = tuple[str, int]


class Resolver:
    """At most ``max_threads`` look-ups at a time; those of one host share one."""

    def __init__(self, max_threads: int = 8) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._open: dict[_Key, Future[list[AddressInfo]]] = {}
        self._waiting: deque[_Key] = deque()
        self._threads = 0

    def look_up(self, host: str, port: int, family: int, scope: Scope, timeout_s: float | None) -> list[AddressInfo]:
        """The stream addresses of a host, never an empty list.

        Raises ``socket.gaierror`` if there are none, ``TimeoutError`` after ``timeout_s``, ``Cancelled`` at
        once when the scope is stopped. A numeric host is answered here, without a thread.
        """
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host.partition("%")[0])
            return _stream_addresses(host, port, family)
        found = scope.wait_for(self._shared((host, family)), timeout_s)
        return [(*info[:4], (info[4][0], port, *info[4][2:])) for info in found]

    def _shared(self, key: _Key) -> Future[list[AddressInfo]]:
        with self._lock:
            answer = self._open.get(key)
            if answer is None:
                answer = self._open[key] = Future()
                self._waiting.append(key)
                if self._threads < self._max_threads:
                    self._threads += 1
                    threading.Thread(target=self._work, name="resolver", daemon=True).start()
        return answer

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                key = self._waiting.popleft()
            self._answer(key)

    def _answer(self, key: _Key) -> None:
        found: list[AddressInfo] = []
        failure: Exception | None = None
        try:
            found = _stream_addresses(key[0], 0, key[1])
        except Exception as error:
            failure = error
        with self._lock:
            answer = self._open.pop(key)
        if failure is None:
            answer.set_result(found)
        else:
            answer.set_exception(failure)


def _stream_addresses(host: str, port: int, family: int) -> list[AddressInfo]:
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from error
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "no address")
    return [(int(kind), int(stream), proto, name, address) for kind, stream, proto, name, address in found]


#: The resolver of this process.
resolver = Resolver()
