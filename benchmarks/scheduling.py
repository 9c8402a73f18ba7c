"""Microseconds a no-op goal, beside a bare thread pool with a dependency counter (the floor)."""

import gc
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.graphs import SHAPES
from benchmarks.table import Table
from core.cancellation import Level, Scope
from core.engine.call_pool import CallPool
from core.plan.goal import Goal
from core.plan.plan import Plan
from core.session.access import Caller
from core.session.records import NewRun, TurnStart
from core.session.starts import start_run
from core.session.turn import Turn
from core.store.database import open_database
from core.store.feed import FeedHub
from core.store.writer import Writer

WORKERS = 16


class _Caller:
    sub, tenant, session_id = "bench", "default", None


def floor(graph: list[list[int]]) -> float:
    """Seconds for the graph on ``ThreadPoolExecutor``: whoever finishes a task submits what it released."""
    waiting = [len(needs) for needs in graph]
    dependents: list[list[int]] = [[] for _ in graph]
    for index, needs in enumerate(graph):
        for other in needs:
            dependents[other].append(index)
    lock, done, left = threading.Lock(), threading.Event(), [len(graph)]

    def run(index: int) -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                done.set()
            ready = []
            for other in dependents[index]:
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        for other in ready:
            pool.submit(run, other)

    with ThreadPoolExecutor(WORKERS) as pool:
        start = time.perf_counter()
        for index, needs in enumerate(graph):
            if not needs:
                pool.submit(run, index)
        done.wait()
        return time.perf_counter() - start


def fill(plan: Plan, graph: list[list[int]]) -> None:
    """The graph as goals."""
    goals = [Goal(plan, f"g{index}", "", "", plan.plan_goal) for index in range(len(graph))]
    for goal, needs in zip(goals, graph, strict=True):
        for other in needs:
            goal.depend_on(goals[other])


def alone(graph: list[list[int]]) -> float:
    """Seconds for the scheduler alone."""
    plan = Plan(Scope.root().open(Level.TURN, "t"), CallPool(WORKERS), lambda _: None)
    fill(plan, graph)
    start = time.perf_counter()
    plan.run()
    return time.perf_counter() - start


def with_log(graph: list[list[int]]) -> float:
    """Seconds until every status of every goal is durable: a real turn over SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(None, Path(folder))
        writer = Writer(database, FeedHub())
        caller: Caller = _Caller()
        _, begun = writer.transact(lambda tx: start_run(tx, caller, NewRun("bench", "s"))).result()
        assert isinstance(begun, TurnStart)
        pool = CallPool(WORKERS)
        turn = Turn(begun, Scope.root().open(Level.RUN, "r"), writer, pool, 0.5)
        plan = turn.make_plan(lambda _: None)
        fill(plan, graph)
        start = time.perf_counter()
        plan.run()
        writer.transact(lambda _: None).result()
        took = time.perf_counter() - start
        writer.close()
        database.dispose()
        return took


def run(table: Table, repeats: int) -> None:
    """All shapes and sizes, ours and the floor in turn."""
    for shape, make in SHAPES.items():
        for size in (100, 1000, 10_000):
            graph = make(size)
            times: dict[str, list[float]] = {"floor": [], "alone": [], "log": []}
            for _ in range(repeats):
                for name, measure in (("floor", floor), ("alone", alone), ("log", with_log)):
                    gc.collect()
                    times[name].append(measure(graph) / size * 1e6)
            base = statistics.median(times["floor"])
            for name, budget in (("alone", 2.0), ("log", 6.0)):
                label = "scheduler alone" if name == "alone" else "with the event log"
                table.ratio(f"{label}, {shape} {size}", "us/goal", times[name], base, budget)
