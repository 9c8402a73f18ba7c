"""The HTTP server: gunicorn with one threaded worker process, and how it stops.

One process, because plans, tokens and the hub of events live in one: a second worker is a second server.
"""

import contextlib
import errno
import gc
import importlib
import json
import logging
import os
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, Protocol

import gunicorn.util
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.gthread import ThreadWorker

from api.kernel import die_with_parent
from core.errors import ConfigurationError
from core.settings import Settings

log = logging.getLogger(__name__)

#: Seconds for open requests to end after a SIGTERM, and then for the turns to be parked and written.
DRAIN_S = 5
CLOSE_S = 10.0
#: Seconds of silence in the middle of a request after which its connection is closed.
STALL_S = 20
#: Seconds in which a client has not taken a byte of its answer after which its connection is closed.
STUCK_S = 60
LAST_WORDS_S = 1.0
THREADS = 1100


class Runtime(Protocol):
    """What the app keeps in ``app.extensions["runtime"]``."""

    def begin_shutdown(self) -> None:
        """Start stopping the turns and ending the streams; does not wait; may be repeated."""

    def describe(self) -> str:
        """What runs now, for whoever looks for what hangs."""

    def close(self, timeout_s: float) -> None:
        """Wait until the turns are parked and everything is written, ``timeout_s`` seconds at most."""


def bind(host: str, port: int) -> socket.socket:
    """The server's listening socket. ``ConfigurationError`` if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Inherited by every connection: one that stalls in the middle of a request gives its thread back. Between
        # requests no thread waits, so keep-alive is not touched.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", STALL_S, 0))
        # And one that does not read gives back its thread and its place among the event streams.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STUCK_S, 0))
        # Only listening takes the port for good: a second server that merely binds would notice too late.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"PORT={port} is in use on {host}: stop what listens there, or set another PORT"
            ) from None
        raise ConfigurationError(
            f"HOST={host!r}, PORT={port} cannot be served ({error.strerror}): set others"
        ) from None
    return listener


class Server(BaseApplication):
    """The app under gunicorn. ``announce`` runs in the worker once it is ready, and only the first time."""

    def __init__(self, listener: socket.socket, settings: Settings, announce: Callable[[], None]) -> None:
        self._listener = listener
        self._settings = settings
        self._announce = announce
        self._runtime: Runtime | None = None
        super().__init__()

    def load_config(self) -> None:
        """Gunicorn's own configuration; nothing of it is read from files or from the command line."""
        options: dict[str, Any] = {
            "bind": [f"fd://{self._listener.fileno()}"],
            "worker_class": _Worker,
            "workers": 1,
            "threads": THREADS,
            "worker_connections": 2000,
            "control_socket_disable": True,
            "timeout": 120,
            # The master's patience until it kills: the worker's own periods, and a little.
            "graceful_timeout": DRAIN_S + round(CLOSE_S + LAST_WORDS_S) + 2,
            "keepalive": 75,
            "loglevel": "warning",
            "accesslog": None,
            "proc_name": "pythonserver",
            "post_fork": _die_with_master,
            "post_worker_init": self._worker_is_ready,
            "worker_exit": self._worker_exits,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """The WSGI app, made in the worker: threads and connections do not survive a fork."""
        from api.app import create_app

        app = create_app(self._settings)
        self._runtime = app.extensions["runtime"]
        return app

    def run(self) -> None:
        """Serve until a signal ends it; leaves by ``SystemExit``."""
        gunicorn.util.write_error = _write_problem
        _load_app()
        # Gunicorn takes the descriptor over and closes it.
        self._listener.detach()
        _OneWorkerArbiter(self).run()

    def _worker_is_ready(self, worker: ThreadWorker) -> None:
        worker.cfg.set("graceful_timeout", DRAIN_S)
        if self._runtime is not None:
            _stop_gently(worker, self._runtime)
        if worker.age == 1:
            with contextlib.suppress(OSError):
                self._announce()

    def _worker_exits(self, _arbiter: Arbiter, worker: ThreadWorker) -> None:
        # Gunicorn calls this in the master, too, when it finds that a worker has gone.
        if str(worker.pid) != str(os.getpid()):
            return
        leaving = sys.exception()
        if self._runtime is not None:
            try:
                self._runtime.begin_shutdown()
                self._runtime.close(CLOSE_S)
            except Exception:
                log.exception("the shutdown was not clean; the next start settles what it left")
        _let_answers_end(worker)
        _leave_at_once(leaving.code if isinstance(leaving, SystemExit) else 1)


class _Worker(ThreadWorker):
    """Gunicorn's threaded worker, which bears that the master shuts the listening socket, and clients that do not read."""

    def handle_request(self, req: Any, conn: Any) -> bool:
        """Answer a request; whether the connection stays open."""
        try:
            return bool(super().handle_request(req, conn))
        except BlockingIOError as error:  # the kernel gave up sending: for gunicorn, that the client has gone
            raise BrokenPipeError(errno.EPIPE, "the client does not read") from error

    def accept(self, listener: Any) -> None:
        """Take a connection."""
        try:
            super().accept(listener)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.set_accept_enabled(False)  # shut: the signal to end is on its way


class _OneWorkerArbiter(Arbiter):
    """Gunicorn's master without the signals that would start a second worker or a second master."""

    def stop(self, graceful: bool = True) -> None:
        """End the worker, then this process. From now on a new connection is refused.

        Closing is not enough: the worker has a copy, and the kernel would let clients in whom nobody serves.
        """
        for listener in self.LISTENERS:
            with contextlib.suppress(OSError):
                listener.sock.shutdown(socket.SHUT_RDWR)
        super().stop(graceful)

    def handle_hup(self) -> None:
        """The terminal is gone: end, instead of starting a new worker beside the old one."""
        self.handle_term()

    def handle_ttin(self) -> None:
        """One worker it stays."""

    def handle_ttou(self) -> None:
        """One worker it stays."""

    def handle_usr2(self) -> None:
        """One master it stays."""


def _load_app() -> None:
    """Import the app before the fork: the worker has it at once, and so has one that takes its place.

    From then on garbage is collected, and what is loaded is left alone, in either process, to the end.
    """
    gc.disable()
    importlib.import_module("api.app")
    gc.freeze()
    gc.enable()


def _stop_gently(worker: ThreadWorker, runtime: Runtime) -> None:
    """On a signal: stop the turns and end the streams, so that their requests end, and drain meanwhile. On SIGUSR1:
    tell what runs, and every thread's stack.

    Gunicorn would wait for open event streams the whole time; and SIGINT and SIGQUIT, which both reach the
    worker on a Ctrl-C, would make it leave in the middle of a request.
    """
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait_for_signal() -> None:
        while signals.get() == signal.SIGUSR1:
            sys.stderr.write(f"{runtime.describe()}\n{_stacks()}\n")
        runtime.begin_shutdown()

    def on_signal(number: int, frame: FrameType | None) -> None:
        # A handler interrupts any line, also one that holds a lock: only this put is safe there, and so the
        # thread that does the work is started beforehand.
        signals.put(number)
        worker.handle_exit(number, frame)

    threading.Thread(target=wait_for_signal, name="shutdown", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGUSR1, lambda number, _: signals.put(number))


def _let_answers_end(worker: ThreadWorker) -> None:
    """Give the streams that the shutdown ended a moment to say so to their clients."""
    if worker.tpool is not None:
        ending = threading.Thread(target=worker.tpool.shutdown, name="last-answers", daemon=True)
        ending.start()
        ending.join(LAST_WORDS_S)


def _stacks() -> str:
    """Every thread's name and stack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _leave_at_once(code: Any) -> NoReturn:
    """End the worker here. Unwinding would run the clean-up of the master that it was forked from, and Python
    would join the pool's threads, of which a client that reads nothing can hold one.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0)


def _die_with_master(_arbiter: Arbiter, worker: ThreadWorker) -> None:
    """Have the kernel end the worker when the master is killed -9: the next start finds DATA_DIR free."""
    die_with_parent()
    # It may have died before the line above.
    if os.getppid() != worker.ppid:
        os._exit(1)


def _write_problem(sock: socket.socket, status_int: int, reason: str, mesg: str) -> None:
    """Gunicorn's answer to what is no HTTP request, as a problem document instead of its HTML page."""
    code = "internal_error" if status_int >= 500 else "bad_request"
    document = {
        "type": f"urn:pythonserver:problem:{code}",
        "title": reason,
        "status": status_int,
        "code": code,
    }
    body = json.dumps(document)
    head = (
        f"HTTP/1.1 {status_int} {reason}\r\nConnection: close\r\n"
        f"Content-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    gunicorn.util.write_nonblock(sock, (head + body).encode("latin-1"))
