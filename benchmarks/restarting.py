"""From the start of ``python -m api`` to its address, with an empty store and with full ones."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.filled_store import fill_sessions
from benchmarks.table import Table
from tests.support.model_server import ModelServer
from tests.support.servers import ServerProcess

OPEN_TURNS = 100


def _seconds(template: Path, folder: Path, models: ModelServer) -> float:
    """A start over a copy of the store: an earlier one would have settled what was open."""
    shutil.copytree(template, folder)
    began = time.perf_counter()
    with ServerProcess(folder, models.url, LOG_LEVEL="error"):
        return time.perf_counter() - began


def run(table: Table, sessions: int, repeats: int) -> None:
    """Empty, many parked sessions, and as many with turns that a killed server left open."""
    with ModelServer() as models, tempfile.TemporaryDirectory() as folder:
        stores = {name: Path(folder) / name for name in ("empty", "parked", "open")}
        fill_sessions(stores["empty"], 0, "parked")
        fill_sessions(stores["parked"], sessions, "parked")
        shutil.copytree(stores["parked"], stores["open"])
        fill_sessions(stores["open"], OPEN_TURNS, "open")
        times: dict[str, list[float]] = {name: [] for name in stores}
        for number in range(repeats):
            for name, store in stores.items():
                times[name].append(_seconds(store, Path(folder) / f"{name}{number}", models))
    base = statistics.median(times["empty"])
    table.ratio(f"start to ready, {sessions} parked sessions (floor: empty)", "s", times["parked"], base, 1.25)
    table.ratio(f"the same and {OPEN_TURNS} open turns to settle", "s", times["open"], base, 2)
