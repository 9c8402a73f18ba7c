"""The socket under a blocking call, so that another thread can hang up on it.

``close()`` of a response or a socket from a foreign thread blocks, or wakes nobody. ``shutdown(2)`` wakes the
reader in every phase and tells the peer, and it works on the *open file*, not on the Python object: so the
:class:`AbortableSocket` keeps a descriptor of its own. With that, it cannot hit a descriptor number that was
closed and given to somebody else, it goes on working after TLS has taken the plain socket over, and it never
touches an object that the reading thread is using.
"""

import ctypes
import os
import socket
import threading

# PyDLL calls without releasing the GIL; ``socket.shutdown`` releases it, and each release hands the
# interpreter to one of the readers just woken. shutdown(2) on a TCP socket does not block. Measured (2 cores,
# CPython 3.11), one thread cancels calls whose readers wait in recv, until the loop is done: 100 calls 1.5 ms,
# with socket.shutdown 14 ms; 1,000 calls 17 ms against 150 ms, if the interpreter's switch interval (5 ms by
# default) does not cut the loop in pieces, else 144 ms.
_shutdown = ctypes.PyDLL(None).shutdown
_shutdown.argtypes = (ctypes.c_int, ctypes.c_int)
_shutdown.restype = ctypes.c_int

_NONE = -1


class AbortableSocket:
    """What a stop shuts: at most one socket at a time, the one that now serves the call.

    One object serves one call, on however many addresses it tries; :meth:`shut` is for ever.
    """

    __slots__ = ("_fd", "_is_shut", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = _NONE
        self._is_shut = False

    @property
    def is_shut(self) -> bool:
        """Whether somebody hung up on this call."""
        return self._is_shut

    def attach(self, sock: socket.socket) -> None:
        """Follow this socket from now on, in place of an earlier one.

        Raises ``ConnectionAbortedError`` if the call was shut before the socket existed.
        """
        fd = os.dup(sock.fileno())
        with self._lock:
            old, self._fd = self._fd, fd
            if self._is_shut:
                _shutdown(fd, socket.SHUT_RDWR)
        if old != _NONE:
            os.close(old)
        self.check()

    def check(self) -> None:
        """``ConnectionAbortedError`` if somebody hung up. To be asked after connect().

        A shutdown that falls between socket() and connect() is no error to the kernel, and the connect may
        succeed.
        """
        if self._is_shut:
            raise ConnectionAbortedError("the call was shut")

    def detach(self) -> None:
        """Forget the socket: it may serve another call next. From now on, :meth:`shut` cannot reach it."""
        with self._lock:
            fd, self._fd = self._fd, _NONE
        if fd != _NONE:
            os.close(fd)

    def shut(self) -> None:
        """Hang up, in any phase, from any thread. Never blocks. Without a socket yet, it is remembered."""
        # Under the lock, else detach() could close the number first. An error means that it is shut already.
        with self._lock:
            self._is_shut = True
            if self._fd != _NONE:
                _shutdown(self._fd, socket.SHUT_RDWR)
