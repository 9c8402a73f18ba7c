"""The last resort: ending processes that nobody supervises any more, by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator


def kill_marked(marks: Iterable[str], within_s: float) -> bool:
    """KILL every process that was started with one of the variables ``marks`` (``NAME=value``), until there is none.

    False if some are still there after ``within_s``: they are somebody else's, or the kernel does not let them go.
    It does not see a process that has given up its environment.
    """
    deadline = time.monotonic() + within_s
    wanted = {mark.encode() for mark in marks}
    # In the middle of an exec a process shows no environment for a moment, so one empty walk proves nothing.
    empty_walks = 0
    while empty_walks < 2:
        found = list(_marked(wanted))
        empty_walks = 0 if found else empty_walks + 1
        for pidfd in found:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ended = [_has_ended(pidfd, deadline) for pidfd in found]
        for pidfd in found:
            os.close(pidfd)
        if not all(ended):
            return False
    return True


def _marked(marks: set[bytes]) -> Iterator[int]:
    """A pidfd of each such process; a dead one has no environment."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or not _has_mark(name, marks):
            continue
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(int(name))
            if _has_mark(name, marks):  # still the same process, so the descriptor is of no other
                yield pidfd
            else:
                os.close(pidfd)


def _has_mark(pid: str, marks: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return not marks.isdisjoint(file.read().split(b"\0"))
    except OSError:
        return False


def _has_ended(pidfd: int, deadline: float) -> bool:
    """Waits for it until the deadline. A pidfd is readable once its process is dead, taken in or not."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
