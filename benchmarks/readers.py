"""A thousand readers of one run: how late events arrive, what a reader costs, and what their arrival does to a stop."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.bare_server import BareServer
from benchmarks.crowd import Crowd
from benchmarks.filled_store import fill_run
from benchmarks.lean_client import LeanClient
from benchmarks.server_figures import cpu_ms, status_of, worker_of
from benchmarks.table import Table
from tests.support.api_client import Api, Run, make_token
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess, wait_until

READERS = 1000
RATE = 50
PARKED = "event: awaiting_input\n"
ARRIVALS = 300
LENGTH = 500


def follow(table: Table, server: ServerProcess, seconds: int) -> None:
    """Lag and memory while a run streams text to a thousand readers."""
    with BareServer("push", READERS, RATE, seconds) as bare:
        crowd = Crowd(bare.url, "/events", "", READERS, PARKED)
        crowd.begin()
        floor = crowd.result()
    with BareServer("threads", READERS) as bare:
        thread = bare.answer()
    assert floor.done == READERS
    run = server.api().start(script("trickle", tokens=1))
    run.wait_parked()
    pid = worker_of(server)
    memory = status_of(pid, "VmRSS")
    crowd = Crowd(server.url, f"{run.path}/events?after={run.view()['last_seq']}", make_token("alice"), READERS, PARKED)
    crowd.begin()
    crowd.wait_open()
    busy = cpu_ms(pid)
    run.say(script("trickle", tokens=RATE * seconds, interval_ms=1000 // RATE))
    report = crowd.result()
    left_at = time.perf_counter()
    nobody = "\npythonserver_stream_readers 0.0\n"
    wait_until(lambda: nobody in server.api().request("GET", "/metrics").text, "all have left")
    gone_s = time.perf_counter() - left_at
    assert (report.done, report.events % READERS) == (READERS, 0)
    grown = (status_of(pid, "VmRSS") - memory) / READERS
    print(f"  {report.events} events arrived; the server used {(cpu_ms(pid) - busy) / seconds / 10:.0f} % of a core; "
          f"all had left after {gone_s:.1f} s")
    what = f"event -> {READERS} readers, {RATE}/s (floor: one thread, bare sockets)"
    table.within(what, "ms", report.lags, statistics.median(floor.lags), (250, 250))
    table.within("memory of a reader (floor: a blocked thread)", "KiB", [grown], thread, (96, 96))


def arrive(table: Table, server: ServerProcess, run_id: str, repeats: int) -> None:
    """A crowd that comes at once and wants a run's past; somebody else presses STOP in the middle."""
    api, stopper = server.api("bob"), LeanClient(server.url, "bob")
    alone = [_stop(_start_text(api), stopper) for _ in range(10)]
    path, pid = f"/v1/runs/{run_id}", worker_of(server)
    costs: dict[str, list[float]] = {"GET": [], "events": []}
    stops = []
    for _ in range(repeats):
        for what, full, until in (("GET", path, '"last_seq"'), ("events", f"{path}/events", f"id: {LENGTH}\n")):
            run = _start_text(api)
            crowd = Crowd(server.url, full, make_token("alice"), ARRIVALS, until)
            before = cpu_ms(pid)
            crowd.begin()
            if what == "events":
                time.sleep(0.15)  # into the middle of it
                stops.append(_stop(run, stopper))
            assert crowd.result().done == ARRIVALS
            costs[what].append((cpu_ms(pid) - before) / ARRIVALS)
            run.terminate()
    what = f"{ARRIVALS} new readers of {LENGTH} events, each (floor: GET run)"
    table.ratio(what, "ms CPU", costs["events"], statistics.median(costs["GET"]), 3)
    table.within("/stopplan amid their arrival (floor: alone)", "ms", stops, statistics.median(alone), (500, 1000))


def _start_text(api: Api) -> Run:
    run = api.start(script("trickle", tokens=2000, interval_ms=20))
    run.wait_event("text")
    return run


def _stop(run: Run, stopper: LeanClient) -> float:
    answer, took = stopper.post("/stopplan")
    assert answer["stopped"] is True
    run.wait_parked()
    run.terminate()
    return took


def run(table: Table, seconds: int, repeats: int) -> None:
    """Both on one server."""
    with ModelServer() as models, tempfile.TemporaryDirectory() as folder:
        run_id = fill_run(Path(folder), LENGTH)
        with ServerProcess(Path(folder), models.url, LOG_LEVEL="error") as server:
            follow(table, server, seconds)
            arrive(table, server, run_id, repeats)
