"""What the machine can do at best, measured in the same run: the figures that ours stand beside."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from benchmarks.lean_client import LeanClient
from tests.support.model_server import ModelServer, script


def no_op_post(idle: LeanClient, count: int = 30) -> list[float]:
    """Milliseconds of an authenticated POST that finds nothing to do: ``/stopplan`` of a user without a run."""
    return [idle.post("/stopplan")[1] for _ in range(count)]


class SilentCalls:
    """Bare sockets with a thread blocked in ``recv`` on each, all in calls that the gateway does not answer."""

    def __init__(self, models: ModelServer, count: int, key: str) -> None:
        place = urlsplit(models.url)
        self.sockets = []
        self.threads = []
        for index in range(count):
            sock = socket.create_connection((place.hostname, place.port))
            body = (
                '{"model": "m", "stream": true, "metadata": {"cancellation_token": "%s-%d"}, '
                '"messages": [{"role": "user", "content": "%s"}]}'
            ) % (key, index, script("silent", key=key))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall((head + body).encode())
            thread = threading.Thread(target=_read, args=(sock,), daemon=True)
            thread.start()
            self.sockets.append(sock)
            self.threads.append(thread)
        models.wait_open(count, key=key)

    def shut(self) -> float:
        """Shut all the sockets, one after the other; milliseconds until the last one is shut."""
        start = time.perf_counter()
        for sock in self.sockets:
            sock.shutdown(socket.SHUT_RDWR)
        return (time.perf_counter() - start) * 1000

    def close(self) -> None:
        """Let go of everything."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):  # shut already
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)
        for sock in self.sockets:
            sock.close()


def _read(sock: socket.socket) -> None:
    try:
        while sock.recv(65536):
            pass
    except OSError:
        pass


def bare_shutdown(models: ModelServer, count: int, key: str) -> tuple[float, float]:
    """Milliseconds to shut ``count`` sockets, and from the first shutdown to the last close that the gateway saw."""
    calls = SilentCalls(models, count, key)
    began = time.time()
    took = calls.shut()
    closed = models.wait_closed(count, key=key)
    calls.close()
    return took, (max(call.closed_at or 0 for call in closed) - began) * 1000


def bare_cancels(models: ModelServer, count: int, key: str) -> float:
    """Milliseconds for ``count`` pooled ``/v1/cancel`` of silent calls, 32 at once."""
    calls = SilentCalls(models, count, key)
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", HTTPAdapter(pool_maxsize=32))

    def ask(index: int) -> None:
        session.post(f"{models.url}/v1/cancel", json={"cancellation_token": f"{key}-{index}"}).raise_for_status()

    with ThreadPoolExecutor(32) as pool:
        wait([pool.submit(models.request, "GET", "/healthz") for _ in range(32)])
        start = time.perf_counter()
        wait([pool.submit(ask, index) for index in range(count)])
        took = (time.perf_counter() - start) * 1000
    session.close()
    models.wait_closed(count, key=key)
    calls.close()
    return took
