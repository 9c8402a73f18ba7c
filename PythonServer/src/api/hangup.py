"""Notices at once when a client hangs up, without a thread a client and without asking again and again."""

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Watch:
    """One watched connection. Use it as a context manager, or call :meth:`release`."""

    __slots__ = ("_fd", "_owner", "on_gone")

    def __init__(self, owner: "HangupWatch", fd: int, on_gone: Callable[[], None]) -> None:
        self._owner = owner
        self._fd = fd
        self.on_gone = on_gone

    def release(self) -> None:
        """Stop watching. Afterwards ``on_gone`` does not start; it may be running. Harmless if repeated."""
        self._owner.forget(self._fd, self)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class HangupWatch:
    """One daemon thread that sleeps in the kernel until a watched client hangs up.

    A client that closes only its sending side counts as gone, too: a reader of events keeps both sides open.
    The thread begins with the first watch, so an unused watch survives a fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[int, Watch] = {}
        self._epoll: select.epoll | None = None

    def watch(self, connection: socket.socket | int, on_gone: Callable[[], None]) -> Watch:
        """Run ``on_gone`` once, on the watching thread, when the client is gone; it must not block.

        A duplicate of the descriptor keeps the connection open until the release, so release it before the
        server closes it. A connection that is closed already is gone: ``on_gone`` runs at once, right here.
        """
        try:
            fd = os.dup(connection if isinstance(connection, int) else connection.fileno())
        except OSError:
            on_gone()
            return Watch(self, -1, on_gone)
        watch = Watch(self, fd, on_gone)
        with self._lock:
            try:
                self._running_epoll().register(fd, _GONE | select.EPOLLONESHOT)
            except OSError:
                os.close(fd)
                raise
            self._watches[fd] = watch
        return watch

    def forget(self, fd: int, watch: Watch) -> bool:
        """Take a watch away; False if it was away already."""
        with self._lock:
            return self._take(fd, watch)

    def _take(self, fd: int, watch: Watch) -> bool:
        if self._watches.get(fd) is not watch:
            return False
        del self._watches[fd]
        # Closing is not enough: the kernel keeps the entry while any copy of the descriptor is open.
        with contextlib.suppress(OSError):
            self._running_epoll().unregister(fd)
        os.close(fd)
        return True

    def _running_epoll(self) -> select.epoll:
        if self._epoll is None:
            self._epoll = select.epoll()
            threading.Thread(target=self._run, args=(self._epoll,), name="hangup-watch", daemon=True).start()
        return self._epoll

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for fd, _ in epoll.poll():
                self._tell(fd)

    def _tell(self, fd: int) -> None:
        with self._lock:
            watch = self._watches.get(fd)
            # Between the kernel's report and this line the number may have gone to another connection.
            if watch is None or not _is_gone(fd):
                return
            self._take(fd, watch)
        try:
            watch.on_gone()
        except Exception:
            log.exception("what was to be done for a gone client failed")


def _is_gone(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return any(events & _GONE for _, events in poll.poll(0))


#: The watch of this process.
hangup_watch = HangupWatch()
