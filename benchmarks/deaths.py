"""When processes die, as the kernel says it, and what ending plain children costs: the floor of stopped tools."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable

PATIENCE_S = 30.0


class Deaths:
    """Watches processes from now on, on a thread of its own."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pidfds = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # dead already
                self._pidfds.append(os.pidfd_open(pid))
        self._last_at = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        poller = select.poll()
        for pidfd in self._pidfds:
            poller.register(pidfd, select.POLLIN)
        left = set(self._pidfds)
        while left:
            for pidfd, _ in poller.poll():
                poller.unregister(pidfd)
                left.discard(pidfd)
        self._last_at = time.perf_counter()

    def wait_all(self) -> float:
        """``time.perf_counter()`` at the last one's death."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a process lives on"
        for pidfd in self._pidfds:
            os.close(pidfd)
        return self._last_at


def bare_kill(count: int = 1) -> float:
    """Milliseconds from TERM to a group of plain children until the last one's death."""
    children = [subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, process_group=0)]
    group = children[0].pid
    for _ in range(count - 1):
        children.append(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, process_group=group))
    deaths = Deaths(child.pid for child in children)
    time.sleep(0.01)  # until they are asleep, as a stopped tool is; no event tells of that
    start = time.perf_counter()
    os.killpg(group, signal.SIGTERM)
    took = (deaths.wait_all() - start) * 1000
    for child in children:
        child.wait()
    return took
