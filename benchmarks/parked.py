"""What a parked session costs: memory of the server's process, and threads."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from benchmarks.table import Table
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess


def _worker(server: ServerProcess) -> str:
    assert server.process is not None
    found = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=True)
    return found.stdout.split()[0]


def _read(pid: str, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(name)


def run(table: Table, sessions: int) -> None:
    """Park ``sessions`` sessions, after a first hundred that warm everything up."""
    with ModelServer() as models, tempfile.TemporaryDirectory() as folder:
        with ServerProcess(Path(folder), models.url, LOG_LEVEL="error") as server:
            api = server.api()

            def park(count: int) -> None:
                for _ in range(count):
                    run = api.start(script("strict"))
                    run.events()
                models.clear()

            park(100)
            pid = _worker(server)
            memory, threads = _read(pid, "VmRSS"), _read(pid, "Threads")
            park(sessions)
            grown = (_read(pid, "VmRSS") - memory) / sessions
            print(f"  threads: {threads} before, {_read(pid, 'Threads')} after {sessions} sessions were parked")
            table.within(f"a parked session's memory ({sessions} parked)", "KiB", [grown], 0, (8, 8))
