"""What the kernel knows of a server: memory, threads and processor time of its worker."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.servers import ServerProcess


def worker_of(server: ServerProcess) -> int:
    """Process id of the one worker."""
    assert server.process is not None
    pid = server.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def status_of(pid: int, name: str) -> int:
    """A number of ``/proc/PID/status``: ``VmRSS`` in KiB, ``Threads``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(name)


def cpu_ms(pid: int) -> float:
    """Milliseconds of processor time so far, in steps of ten."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
