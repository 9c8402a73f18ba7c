"""From a message or an answer to its effect: in the model server's next request, in the tool that waits.

The server is in this process, so that the end of a wait can be seen; the model server has one of its own, on the same
clock.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from benchmarks import floors
from benchmarks.lean_client import LeanClient
from benchmarks.table import Table
from benchmarks.waits import Wake
from core.call import CallKind
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import Run
from tests.support.model_server import ModelServer, script
from tests.support.python_tools import call_line, give_tool
from tests.support.servers import LocalServer


@contextmanager
def _serving(provider: str = "de2generator") -> Iterator[tuple[LocalServer, ModelServer]]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request, among those of the table
    with tempfile.TemporaryDirectory() as folder, ModelServer(strict=True) as models:
        url = models.url if provider == "de2generator" else f"{models.url}/v1"
        fields = {"llm_provider": provider, "log_level": "error", "tools_allowed": ("ask_user",)}
        with LocalServer(Path(folder), url, **fields) as server:
            yield server, models


def redirects(table: Table, repeats: int) -> None:
    """An answer streams; the correction's POST goes out; the next request arrives at the model server."""
    for provider in ("de2generator", "openai"):
        with _serving(provider) as (server, models):
            client, idle = LeanClient(server.url, "alice"), LeanClient(server.url, "idle")
            times = []
            for number in range(repeats + 1):
                run = server.api().start(script("trickle", tokens=400, key=f"a{number}"), planning="none")
                run.wait_event("text")
                began = time.time()
                answer, _ = client.post(
                    f"{run.path}/input", {"text": script("trickle", tokens=1, key=f"b{number}"), "mode": "redirect"}
                )
                assert answer["disposition"] == "redirected", answer
                (call,) = models.wait_calls(1, key=f"b{number}")
                times.append((call.started_at - began) * 1000)
                run.wait_parked()
                run.terminate()
            floor = statistics.median(floors.no_op_post(idle)) + _bare_request(models)
            table.within(f"redirect -> next request ({provider})", "ms", times[1:], floor, (10, 25))


def _bare_request(models: ModelServer, count: int = 20) -> float:
    """Milliseconds from a bare POST on a kept connection to its arrival at the model server, by the server's clock."""
    times = []
    with requests.Session() as session:
        session.trust_env = False
        for number in range(count):
            message = {"role": "user", "content": script("trickle", tokens=1, key=f"floor{number}")}
            began = time.time()
            session.post(f"{models.url}/v1/chat/completions", json={"model": "m", "messages": [message]})
            (call,) = models.wait_calls(1, key=f"floor{number}")
            times.append((call.started_at - began) * 1000)
    return statistics.median(times)


def answers(table: Table, repeats: int) -> None:
    """A tool waits for the user; the answer's POST goes out; the tool's call has ended."""
    with _serving() as (server, _):
        client, idle = LeanClient(server.url, "alice"), LeanClient(server.url, "idle")
        times = []
        for number in range(repeats + 1):
            run = server.api().start(script("toolcall", name="ask_user", arguments='{"question":"which?"}', tokens=1))
            asked = run.wait_event("interruption_pending")["interrupt_id"]
            wake = Wake(_question(server, run))
            began = time.perf_counter()
            client.post(f"{run.path}/interrupts/{asked}/resolve", {"disposition": "answered", "answer": str(number)})
            times.append((wake.at() - began) * 1000)
            run.wait_parked()
            run.terminate()
        floor = statistics.median(floors.no_op_post(idle))
        table.within("answer -> the tool that asked has ended", "ms", times[1:], floor, (10, 25))


def _question(server: LocalServer, run: Run) -> threading.Event:
    turn = server.main.engine.live_turn(run.id)
    assert turn is not None
    (call,) = [call for call in turn.calls.snapshot() if call.kind is CallKind.QUESTION]
    return call.ended


def steers(table: Table, repeats: int) -> None:
    """A tool runs; with and without a message that came meanwhile, from the tool's end to the next request."""
    with _serving() as (server, models):
        release = threading.Event()

        def work(run: ToolRun) -> ToolResult:
            release.wait(30)
            return ToolResult("done")

        give_tool(server, "wait", work)
        times: dict[bool, list[float]] = {True: [], False: []}
        missed = 0
        for number in range(2 * (repeats + 1)):
            is_steered = bool(number % 2)
            release.clear()
            run = server.api().start(call_line(f"c{number}", "wait"), planning="none")
            run.wait_event("tool_call")
            if is_steered:
                message = script("trickle", tokens=1, key=f"d{number}")
                assert run.say(message, mode="steer")["disposition"] == "steered"
            began = time.time()
            release.set()
            run.wait_parked()
            # The next request is keyed by its last user message: the steer, or the one that began the turn.
            calls = models.calls(key=f"d{number}" if is_steered else f"c{number}")
            missed += len(calls) != (1 if is_steered else 2)
            times[is_steered].append((calls[-1].started_at - began) * 1000)
            run.terminate()
        floor = statistics.median(times[False][1:])
        table.within("tool's end -> next request, with a steer in it", "ms", times[True][1:], floor, (10, 25))
        table.within("steers that were not in the next request", "", [float(missed)], 0, (0, 0))


def run(table: Table, repeats: int) -> None:
    """All of them."""
    redirects(table, repeats)
    answers(table, repeats)
    steers(table, repeats)
