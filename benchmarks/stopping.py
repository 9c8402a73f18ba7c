"""From the stop to its effects: the answer, the closed calls at the model server, the frame at a reader."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import floors
from benchmarks.lean_client import LeanClient
from benchmarks.table import Table
from tests.support.api_client import Api, Run
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess

_keys = itertools.count(1)


def _key() -> str:
    return f"bench{next(_keys)}"


def _silent_plan(count: int, key: str) -> dict[str, Any]:
    line = script("silent", key=key)
    return {"goals": [{"id": f"g{index}", "prompt": line} for index in range(count)]}


def _stop_once(api: Api, stopper: LeanClient, models: ModelServer, count: int) -> tuple[float, float]:
    """Milliseconds from the POST to its 200, and to the last close at the model server."""
    key = _key()
    run = api.start("bench", plan=_silent_plan(count, key))
    models.wait_open(count, key=key)
    began = time.time()
    answer, took = stopper.post("/stopplan")
    assert answer["stopped"] is True
    closed = models.wait_closed(count, key=key)
    run.wait_parked()
    models.clear(key=key)
    run.terminate()
    return took, (max(call.closed_at or 0 for call in closed) - began) * 1000


def _floor(provider: str, models: ModelServer, count: int) -> tuple[float, float]:
    key = _key()
    if provider == "openai":
        found = floors.bare_shutdown(models, count, key)
    else:
        found = (floors.bare_cancels(models, count, key), 0.0)
    models.clear(key=key)
    return found


def answers(table: Table, provider: str, server: ServerProcess, models: ModelServer, repeats: int) -> None:
    """``/stopplan`` to its 200, and the silent call's close."""
    api, stopper, idle = server.api(), LeanClient(server.url, "alice"), LeanClient(server.url, "idle")
    for count, times in ((1, 10 * repeats), (100, 2 * repeats), (1000, repeats)):
        _stop_once(api, stopper, models, count)  # threads and connections are there from now on
        ours, floor, bare_close, no_op = [], [], [], floors.no_op_post(idle)
        for _ in range(times):
            ours.append(_stop_once(api, stopper, models, count))
            bare = _floor(provider, models, count)
            floor.append(bare[0])
            bare_close.append(bare[1])
            no_op += floors.no_op_post(idle, 3)
        base = statistics.median(no_op) + 1.5 * statistics.median(floor)
        print(f"  no-op POST {statistics.median(no_op):.2f} ms, bare floor {statistics.median(floor):.2f} ms")
        table.ratio(f"/stopplan -> 200, {provider}, {count} in flight (no-op + 1.5x)", "ms", [a for a, _ in ours], base, 1)
        if count == 1:
            closes = [close for _, close in ours]
            base = statistics.median(bare_close) + statistics.median(no_op) if provider == "openai" else base
            table.within(f"stop -> the model server sees the close, {provider}", "ms", closes, base, (2, 10))


def frames(table: Table, server: ServerProcess, models: ModelServer, repeats: int) -> None:
    """From the stop to the ``turn_cancelled`` frame at a reader, while text streams."""
    api, stopper, idle = server.api(), LeanClient(server.url, "alice"), LeanClient(server.url, "idle")
    times = []
    for _ in range(repeats * 10):
        key = _key()
        run = api.start(script("trickle", tokens=2000, interval_ms=20, key=key))
        seen: list[float] = []
        reader = threading.Thread(target=_note_cancelled, args=(run, seen))
        reader.start()
        models.wait_tokens(5, key=key)
        start = time.perf_counter()
        stopper.post(f"{run.path}/cancel")
        reader.join(30)
        times.append((seen[0] - start) * 1000)
        run.terminate()
        models.clear(key=key)
    table.within("stop -> turn_cancelled at a reader", "ms", times, statistics.median(floors.no_op_post(idle)), (15, 50))


def _note_cancelled(run: Run, seen: list[float]) -> None:
    with run.stream() as reader:
        reader.collect_type("turn_cancelled")
        seen.append(time.perf_counter())


def run(table: Table, repeats: int) -> None:
    """Both providers, each with a server and a gateway of its own."""
    for provider in ("de2generator", "openai"):
        with ModelServer() as models, tempfile.TemporaryDirectory() as folder:
            url = models.url + ("/v1" if provider == "openai" else "")
            settings = {"LLM_PROVIDER": provider, "CALL_THREADS": "1200", "LOG_LEVEL": "error"}
            with ServerProcess(Path(folder), url, **settings) as server:
                answers(table, provider, server, models, repeats)
                if provider == "openai":
                    frames(table, server, models, repeats)
