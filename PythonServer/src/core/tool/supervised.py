"""The server's side of one shell call: a supervisor process, its output, and the end of both.

Nothing here waits for the command alone. One ``poll`` waits for output, for the supervisor's report, and for the stop,
each a descriptor. The stop goes to the supervisor directly from whoever stops (:meth:`SupervisedCommand.request_stop`
shuts the control socket); the thread that waits is woken as well, only to set itself a bound.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from core.tool import supervisor
from core.tool.marked import kill_marked
from core.tool.tool import ToolFailed

#: Gets a stream's name and what was read from it; False: nothing more of it is wanted.
Take = Callable[[str, bytes], bool]

#: The supervisor is gone and has not said how it ended: something killed it.
LOST: Final = "lost"
#: The variable by which everything that a call has started can be found, should its supervisor be lost.
MARK: Final = "SHELL_CALL_ID"
#: Seconds that the supervisor gets beyond the grace of a stop, and to end what a command has left behind. After that
#: it is ended itself, and what it left is looked for by the mark, so that a stop is over before 1,800 ms.
_STOP_BOUND_S: Final = 0.5
_LEFTOVER_BOUND_S: Final = 5.0
_SWEEP_S: Final = 0.2
_READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended."""

    #: A word of :mod:`core.tool.supervisor`, or ``LOST``.
    how: str
    #: Of the command itself: ``-n`` if signal n killed it. With ``FAILED`` an errno.
    exit_code: int
    #: False if a process could not be ended.
    is_all_gone: bool = True


class SupervisedCommand:
    """``/bin/sh -c command`` under a supervisor. Use it as a context, which closes every descriptor."""

    def __init__(self, command: str, cwd: Path, environment: Mapping[str, str], grace_s: float, call_id: str) -> None:
        self._cwd = cwd
        self._mark = f"{MARK}={call_id}"
        self._environment = {**environment, MARK: call_id, supervisor.COMMAND.decode(): command}
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: dict[int, tuple[str, IO[bytes]]] = {}
        self._report = b""
        self._bound: float | None = None
        self._lock = threading.Lock()
        self._is_open = True
        try:
            self._control, self._far_end = socket.socketpair()
        except OSError as error:
            raise ToolFailed(f"the command could not be started: {error.strerror}") from error
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            self._control.close()
            self._far_end.close()
            raise ToolFailed(f"the command could not be started: {error.strerror}") from error

    def start(self) -> None:
        """Start the supervisor, and with it the command unless a stop was requested. ``ToolFailed`` if it cannot be."""
        far_end = self._far_end.fileno()
        try:
            # No preexec_fn: so Popen takes the vfork path, which is safe and quick in a process of many threads.
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(far_end), str(self._grace_s)],
                env=self._environment, cwd=self._cwd, bufsize=0,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                close_fds=True, pass_fds=[far_end], start_new_session=True,
            )  # fmt: skip
        except OSError as error:  # its text names our own files
            raise ToolFailed(f"the command could not be started: {error.strerror}") from error
        except ValueError as error:  # a zero byte, or half a character
            raise ToolFailed(f"the command cannot be passed on: {error}") from error
        self._far_end.close()
        assert process.stdout is not None
        assert process.stderr is not None
        pipes = (("stdout", process.stdout), ("stderr", process.stderr))
        self._pipes = {pipe.fileno(): (name, pipe) for name, pipe in pipes}
        for descriptor in self._pipes:
            os.set_blocking(descriptor, False)

    def request_stop(self) -> None:
        """End the command and all that it started. From any thread, any number of times; never blocks."""
        with self._lock:
            if not self._is_open:
                return
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            if self._process is not None:
                self._process.send_signal(signal.SIGCONT)  # in case the command has suspended its supervisor
            os.eventfd_write(self._wake, 1)

    def wait(self, take: Take) -> Ending:
        """Hand on the output until nothing that was started is left. Whatever ``take`` raises comes after the end."""
        try:
            self._wait_gone(take)
            self._drain(take)
        except BaseException:
            self.request_stop()
            self._wait_gone(lambda *_: False)
            self._take_in()
            raise
        return self._take_in()

    # -- waiting -----------------------------------------------------------------------------

    def _wait_gone(self, take: Take) -> None:
        """Until the supervisor has gone, or has had its time."""
        poller = select.poll()
        for descriptor in (*self._pipes, self._control.fileno(), self._wake):
            poller.register(descriptor, select.POLLIN)
        while not self._is_time_up():
            for descriptor, _ in poller.poll(self._left_ms()):
                if descriptor in self._pipes:
                    if not self._read(descriptor, take):
                        poller.unregister(descriptor)
                        self._close_pipe(descriptor)
                elif descriptor == self._wake:
                    poller.unregister(self._wake)
                    self._set_bound(self._grace_s + _STOP_BOUND_S)
                elif not self._read_report():
                    return

    def _read(self, descriptor: int, take: Take) -> bool:
        """One piece; False if there is nothing more to be had, or wanted."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        return bool(data) and take(self._pipes[descriptor][0], data)

    def _read_report(self) -> bool:
        try:
            data = self._control.recv(4096)
        except ConnectionError:  # it died with something unread
            return False
        self._report += data
        if data:
            self._set_bound(_LEFTOVER_BOUND_S)  # the command is over; only what it left behind is being ended
        return bool(data)

    def _set_bound(self, seconds: float) -> None:
        bound = time.monotonic() + seconds
        self._bound = bound if self._bound is None else min(bound, self._bound)

    def _is_time_up(self) -> bool:
        return self._bound is not None and time.monotonic() >= self._bound

    def _left_ms(self) -> float | None:
        return None if self._bound is None else max(0.0, self._bound - time.monotonic()) * 1000

    def _drain(self, take: Take) -> None:
        """What still lies in the pipes. Does not wait for their end: somebody outside may have been given one."""
        for descriptor in list(self._pipes):
            with contextlib.suppress(BlockingIOError):
                while (data := os.read(descriptor, _READ_BYTES)) and take(self._pipes[descriptor][0], data):
                    pass

    # -- ending ------------------------------------------------------------------------------

    def _take_in(self) -> Ending:
        """The supervisor's report; if there is none, do its work by other means."""
        assert self._process is not None
        lines = [line.split() for line in self._report.decode().splitlines()]
        if lines and lines[-1][0] == supervisor.GONE:
            self._process.wait()
            _, status, how = lines[-1]
            return Ending(how, int(status) if how == supervisor.FAILED else os.waitstatus_to_exitcode(int(status)))
        self._process.kill()
        # Before the wait: whoever traces the supervisor, such as the command itself, keeps it from being taken in.
        is_all_gone = kill_marked([self._mark], _SWEEP_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SWEEP_S)
        if lines:
            return Ending(supervisor.ITSELF, os.waitstatus_to_exitcode(int(lines[-1][1])), is_all_gone)
        return Ending(LOST, -signal.SIGKILL, is_all_gone)

    def _close_pipe(self, descriptor: int) -> None:
        self._pipes.pop(descriptor)[1].close()

    def __enter__(self) -> SupervisedCommand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # a stop may be at work on these at this moment
            self._is_open = False
            self._control.close()
            self._far_end.close()
            os.close(self._wake)
        for descriptor in list(self._pipes):
            self._close_pipe(descriptor)
