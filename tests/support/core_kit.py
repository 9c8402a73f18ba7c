"""What tests of the core modules share: a store on disk, an engine whose turns are plain functions, plans from specs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine as Database
from sqlalchemy import RowMapping, select

from core.agent.rounds import Rounds
from core.cancellation import Level, Scope
from core.engine.call_pool import CallPool
from core.engine.embedded import Engine
from core.plan.goal import Goal
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec
from core.session.messages import accept_message
from core.session.queries import events_after
from core.session.records import NewMessage, NewRun, TurnStart
from core.session.said import Said
from core.session.starts import start_run
from core.session.turn import Turn
from core.store.commit import Transaction
from core.store.database import open_database
from core.store.feed import FeedHub, StoredEvent
from core.store.tables import runs
from core.store.writer import Writer
from tests.support.api_client import PATIENCE_S

T = TypeVar("T")


@dataclass(frozen=True)
class User:
    """A caller."""

    sub: str = "alice"
    tenant: str = "default"
    session_id: str | None = None


ALICE, BOB = User(), User("bob")


class Store:
    """A SQLite store with its writer and hub."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.database: Database = open_database(url, folder)
        self.hub = FeedHub()
        self.writer = Writer(self.database, self.hub)

    def decide(self, decision: Callable[[Transaction], T]) -> T:
        """A decision's answer, once it is durable."""
        return self.writer.transact(decision).result(PATIENCE_S)

    def flush(self) -> None:
        """Until all that was emitted so far is committed."""
        self.decide(lambda tx: None)

    def start(self, caller: User = ALICE, **fields: Any) -> TurnStart:
        """A new run's first turn."""
        new = NewRun(**{"input": "hello", "session_id": "s1", "planning": "none", **fields})
        start = self.decide(lambda tx: start_run(tx, caller, new))[1]
        assert start is not None
        return start

    def run(self, run_id: str) -> RowMapping:
        """The run's row."""
        with self.database.connect() as connection:
            return connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()

    def events(self, run_id: str) -> list[StoredEvent]:
        """What is committed of a run."""
        with self.database.connect() as connection:
            return events_after(connection, run_id, 0, 1_000_000)

    def close(self) -> None:
        """Harmless if repeated."""
        self.writer.close(PATIENCE_S)
        self.database.dispose()


class Turns:
    """An engine over a store, whose turns do what a function says."""

    def __init__(self, store: Store, work: Callable[[Turn, Goal], str | None], places: int = 4) -> None:
        self.store = store
        self.pool = CallPool(places)
        self.engine = Engine(store.writer, self, self.pool, turn_workers=2, cancel_timeout_s=0.5)
        self.work = work
        self.plan: dict[str, Any] | None = None
        self.made: list[Plan] = []

    def run_turn(self, turn: Turn, on_started: Callable[[], None]) -> None:
        """One turn: the handed-in plan, or one goal."""
        on_started()
        spec = PlanSpec.model_validate(turn.start.spec) if turn.start.spec else PlanSpec.single(turn.start.input)
        plan = turn.make_plan(lambda goal: self.work(turn, goal))
        turn.fill_plan(spec, lambda _: None)
        self.made.append(plan)
        plan.run()

    def launch(self, start: TurnStart) -> Turn:
        """Run an accepted turn."""
        return self.engine.launch(start)


@contextmanager
def open_store(folder: Path, url: str | None = None) -> Iterator[Store]:
    """A store that is closed again; SQLite in the folder, or the database at ``url``."""
    store = Store(folder, url)
    try:
        yield store
    finally:
        store.close()


def send(
    tx: Transaction, run_id: str, text: str, if_turn: str | None = None, client_id: str | None = None,
    caller: User = ALICE,
) -> tuple[dict[str, Any], TurnStart | None]:  # fmt: skip
    """A message to a run: the answer, and the turn that it starts."""
    message = NewMessage(text, if_turn=if_turn, client_message_id=client_id)
    accepted, start = accept_message(tx, caller, run_id, message, lambda _: None)
    return accepted.to_json(), start


def build_plan(
    spec: PlanSpec | dict[str, Any], workers: Any, work: Callable[[Goal], str | None], **hooks: Any
) -> tuple[Plan, dict[str, Goal]]:
    """A plan under a turn scope of its own, and its goals by id."""
    spec = spec if isinstance(spec, PlanSpec) else PlanSpec.model_validate(spec)
    run = Scope.root().open(Level.RUN, "r_1")
    plan = Plan(run.open(Level.TURN, "t_1"), workers, work, **hooks)
    goals: dict[str, Goal] = {}
    waiting = [(each, plan.plan_goal) for each in reversed(spec.goals)]
    order = []
    while waiting:
        each, parent = waiting.pop()
        goals[each.id] = Goal(plan, each.id, each.title, each.prompt, parent)
        order.append(each)
        waiting.extend((child, goals[each.id]) for child in reversed(each.goals))
    for each in order:
        for name in dict.fromkeys(each.depends_on):
            goals[each.id].depend_on(goals[name])
    return plan, goals


def plan_node(name: str) -> dict[str, Any]:
    """A goal that has not begun, as the log has it."""
    return {
        "id": name, "title": name, "prompt": "p", "tool": None, "agent": None, "depends_on": [], "goals": [],
        "call_id": None, "delegated": [], "status": "NOT_STARTED", "cause": None, "error": None,
        "started_at": None, "ended_at": None,
    }  # fmt: skip


def what_was_said(*texts: str) -> list[Said]:
    """A goal for each text, cut off behind it."""
    said = []
    for number, text in enumerate(texts):
        rounds = Rounds()
        rounds.say(text)
        said.append(Said(f"g{number}", rounds))
    return said


class Started:
    """Work on a thread of its own, whose end can be waited for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.future.set_result(self._work())
        except BaseException as error:
            self.future.set_exception(error)

    def result(self) -> Any:
        """What it returned, or what it raised."""
        return self.future.result(PATIENCE_S)


def wait_set(event: threading.Event, what: str = "an event") -> None:
    """Until the event is set; bounded."""
    assert event.wait(PATIENCE_S), f"not in time: {what}"
