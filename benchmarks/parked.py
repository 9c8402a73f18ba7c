"""What a parked session costs: memory of the server's process, and threads."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.server_figures import status_of, worker_of
from benchmarks.table import Table
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess


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
            pid = worker_of(server)
            memory, threads = status_of(pid, "VmRSS"), status_of(pid, "Threads")
            park(sessions)
            grown = (status_of(pid, "VmRSS") - memory) / sessions
            print(f"  threads: {threads} before, {status_of(pid, 'Threads')} after {sessions} sessions were parked")
            table.within(f"a parked session's memory ({sessions} parked)", "KiB", [grown], 0, (8, 8))
