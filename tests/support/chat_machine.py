"""A whole server without HTTP, whose model and tools do what a test says; it can be stopped at any point and killed."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

from core import gates
from core.agent.agent import Agent, AgentProfile
from core.base import InputOutput
from core.base.Main import Main
from core.cancellation import Cause, CauseWord, Scope
from core.engine.call_pool import CallPool
from core.engine.embedded import Engine
from core.errors import ServerError, ShuttingDown
from core.plan.scheduler import _LeafJob
from core.provider.backoff import RetryPolicy
from core.session.records import StopOrder, TurnStart
from core.session.turn import Turn
from core.settings import Settings
from core.store.database import open_database
from tests.support.race_kit import requests_of
from tests.support.scripted_provider import (
    LIMIT_S,
    ScriptedProvider,
    ScriptedTool,
    Stage,
)
from tests.support.servers import wait_until

TOOLS: Final = ("alpha", "beta")
#: Seconds after which a deaf call is abandoned here, in place of 1.8.
ABANDON_S: Final = 0.15
#: Milliseconds of a stop for asking the gateway, by how that answers.
_CANCEL_MS: Final = {"hangs": 20}

#: The pause points of the product: on the way to the first request, while goals are at work, at the end, in a stop.
BEGINNING: Final = (
    "engine.accepted", "engine.claimed", "engine.began", "chatbot.before_planning", "goal.before_children",
    "scheduler.before_goal_starts", "agent.before_request", "mail.before_confirmation", "model_call.before_sent",
)  # fmt: skip
MIDDLE: Final = (
    "scheduler.before_goal_starts", "agent.before_request", "mail.before_confirmation", "model_call.before_sent",
    "agent.after_failure", "tool_batch.before_tools",
    "tool_batch.before_result", "tool_loop.between_steps", "goal.before_children",
)  # fmt: skip
ENDING: Final = (
    "chatbot.before_flag_is_cleared", "chatbot.plan_has_run", "turn.before_finish", "engine.before_final_write",
    "engine.after_final_write",
)  # fmt: skip
IN_A_STOP: Final = (
    "engine.before_stop", "turn.scope_closed", "turn.requests_cancelled", "engine.before_stop_is_recorded"
)  # fmt: skip

#: Notes of every move, made by the database itself, in the same transaction.
_WITNESS: Final = """
CREATE TABLE witness (number INTEGER PRIMARY KEY, what TEXT, id TEXT, old TEXT, new TEXT);
CREATE TRIGGER w1 AFTER INSERT ON runs BEGIN
  INSERT INTO witness (what, id, old, new) VALUES ('run', NEW.id, NULL, NEW.state); END;
CREATE TRIGGER w2 AFTER UPDATE OF state ON runs BEGIN
  INSERT INTO witness (what, id, old, new) VALUES ('run', NEW.id, OLD.state, NEW.state); END;
CREATE TRIGGER w3 AFTER INSERT ON turns BEGIN
  INSERT INTO witness (what, id, old, new) VALUES ('turn', NEW.id, NULL, NEW.state); END;
CREATE TRIGGER w4 AFTER UPDATE OF state ON turns BEGIN
  INSERT INTO witness (what, id, old, new) VALUES ('turn', NEW.id, OLD.state, NEW.state); END;
CREATE TRIGGER w5 AFTER UPDATE OF left_out ON turns BEGIN
  INSERT INTO witness (what, id, old, new) VALUES ('left_out', NEW.id, OLD.left_out, NEW.left_out); END;
CREATE TRIGGER w6 AFTER INSERT ON messages BEGIN
  INSERT INTO witness (what, id, old, new) VALUES ('message', NEW.id, NULL, NEW.state); END;
CREATE TRIGGER w7 AFTER UPDATE OF state ON messages BEGIN
  INSERT INTO witness (what, id, old, new) VALUES ('message', NEW.id, OLD.state, NEW.state); END;
"""


def make_template(folder: Path) -> Path:
    """An empty store with the witness in it, to be copied."""
    open_database(None, folder).dispose()
    path = folder / "pythonserver.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_WITNESS)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def new_folder(template: Path, folder: Path) -> Path:
    """A DATA_DIR with a copy of the template."""
    folder.mkdir()
    shutil.copy(template, folder / "pythonserver.db")
    return folder


class Errors(logging.Handler):
    """What the product logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """A tool may fail; nothing else of this kind is meant to happen."""
        if not record.getMessage().startswith("tool "):
            self.found.append(self.format(record))


class ChatServer:
    """One life of a server over a folder."""

    def __init__(
        self, folder: Path, asking: str | None = None, has_long_waits: bool = False, is_titling: bool = False,
        manners: Sequence[int] = (0,),
    ) -> None:  # fmt: skip
        """``asking`` and ``manners`` are what the model server makes of being asked to cancel, and calls of a stop."""
        self.folder = folder
        self.options = (asking, has_long_waits, is_titling, manners)
        self.stage = Stage(has_long_waits, manners)
        provider = ScriptedProvider(self.stage, asking)
        retries = RetryPolicy(max_attempts=2, base_s=1000.0 if has_long_waits else 0.0)
        cancel_ms = _CANCEL_MS.get(asking or "", 500)
        tools = {name: ScriptedTool(self.stage, name) for name in TOOLS}
        agent = Agent(AgentProfile("default", "Be brief.", "m", tools), provider, cancel_ms / 1000, retries)
        settings = Settings(
            _env_file=None, data_dir=folder, llm_base_url="http://127.0.0.1:9", cancel_timeout_ms=cancel_ms,
            auto_title=is_titling,
        )  # fmt: skip
        watched: dict[str, Any] = {
            "CallPool": partial(WatchedPool, self.stage),
            "Engine": partial(WatchedEngine, self.stage),
            "provider_of": lambda _: provider,
            "agents_of": lambda *_: {"default": agent},
        }
        with mock.patch.multiple(sys.modules["core.base.Main"], **watched):
            self.main = Main(settings)
        self.agent = agent

    # -- coming to rest ------------------------------------------------------------------------

    def wait_still(self) -> None:
        """Until nothing moves, and everything that was said is committed."""
        self.stage.wait_still()
        self.main.engine.decide(lambda tx: None)

    def check_at_rest(self) -> None:
        """No turn runs: then nothing of one may be left."""
        engine = self.main.engine
        assert engine.live_turns() == []
        assert not engine.scope._children, engine.scope.dump()
        if not self.stage.gates:  # of calls that were left behind, some may be waiting yet
            assert requests_of(self.agent) == []
            wait_until(lambda: not (engine.pool.busy or engine.pool.abandoned), "every place given back")

    # -- going down ----------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Gracefully."""
        self.begin_shutdown()
        self.close()

    def begin_shutdown(self) -> None:
        """Every turn is stopped."""
        self.main.begin_shutdown()
        # That it is quick is for the bench to show: here other tests may have the machine.
        assert self.main.engine.wait_parked(LIMIT_S), "a shutdown left a turn behind"

    def close(self) -> None:
        """Nothing is left of this life but its store."""
        self.stage.release()
        self.main.close(LIMIT_S)
        assert not self.main.writer._thread.is_alive()
        pool = self.main.engine.pool
        wait_until(lambda: not (pool.busy or pool.abandoned), "every place given back")
        assert self.main.database.pool.checkedout() == 0  # type: ignore[attr-defined]  # of the pool that SQLite has

    def copy_store(self, folder: Path) -> Path:
        """What a kill at this moment would leave: all that is committed, and nothing else."""
        folder.mkdir()
        source = sqlite3.connect(self.folder / "pythonserver.db")
        target = sqlite3.connect(folder / "pythonserver.db")
        with closing(source), closing(target):
            source.backup(target)
        return folder

    @contextmanager
    def after_commits(self, count: int, action: Callable[[], Any]) -> Iterator[None]:
        """Inside, ``action`` runs on the writer's thread right after the ``count``-th commit that wrote an event."""
        publish = self.main.hub.publish
        left = [count]

        def counting(new: Any, encoded: Any) -> None:
            left[0] -= bool(new)
            if left[0] == 0 and new:
                action()
            publish(new, encoded)

        with mock.patch.object(self.main.hub, "publish", counting):
            yield

    def restart(self, folder: Path | None = None) -> ChatServer:
        """Another life, over this store or a copy of it."""
        return ChatServer(folder or self.folder, *self.options)

    # -- stops ------------------------------------------------------------------------------------

    def meet_deadline(self, run_id: str) -> None:
        """What the clock does when the time of the turn that runs is up."""
        turn = self.main.engine.live_turn(run_id)
        if turn is not None:
            order = StopOrder(Cause(CauseWord.DEADLINE, "too long"), ends_run=not turn.start.interactive)
            self.main.engine._stop_at_deadline(turn, order)


# -- whoever is watched ------------------------------------------------------------------------------


class WatchedPool(CallPool):
    """A pool that tells the stage of its jobs."""

    def __init__(self, stage: Stage, places: int) -> None:
        super().__init__(places)
        self._stage = stage

    def submit(self, jobs: Sequence[Callable[[], None]], first: bool = False) -> None:
        """See :meth:`CallPool.submit`."""
        watched = []
        for job in jobs:
            is_leaf = isinstance(job, _LeafJob)
            self._stage.note_job(is_leaf, 1)
            watched.append(partial(self._do, job, is_leaf))
        super().submit(watched, first)

    def _do(self, job: Callable[[], None], is_leaf: bool) -> None:
        try:
            job()
        finally:
            self._stage.note_job(is_leaf, -1)

    @contextmanager
    def resting(self, scope: Scope) -> Iterator[None]:
        """See :meth:`CallPool.resting`."""
        with super().resting(scope):
            self._stage.notify()
            yield


class WatchedEngine(Engine):
    """An engine that tells the stage of its turns."""

    def __init__(self, stage: Stage, *arguments: Any) -> None:
        self._stage = stage
        super().__init__(*arguments)

    def launch(self, start: TurnStart) -> Turn:
        """See :meth:`Engine.launch`."""
        self._stage.note_launch(1)
        return super().launch(start)

    def _run_turn(self, turn: Turn) -> None:
        self._stage.note_turn(turn, True)
        try:
            super()._run_turn(turn)
        finally:
            with self._stage.changed:
                self._stage.note_turn(turn, False)
                self._stage.note_launch(-1)


# -- what comes at a bad moment ----------------------------------------------------------------------


class Ambush:
    """Something that happens when a thread reaches a pause point for the first time: that thread is held until it has
    taken hold, which for a stop is the moment at which the scope is closed.
    """

    def __init__(self, point: str, action: Callable[[], Any]) -> None:
        self.point = point
        self._action = action
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_hold = threading.Event()
        for name in {point, "turn.scope_closed"}:
            gates.installed[name] = partial(self._at, name)

    def _at(self, name: str) -> None:
        if threading.current_thread() is self._thread:
            if name == "turn.scope_closed":
                self._has_hold.set()
            return
        with self._lock:
            if name != self.point or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="ambush", daemon=True)
            self._thread.start()  # under the lock: who sees it may join it
        assert self._has_hold.wait(LIMIT_S), f"the ambush at {name} does not take hold"

    def _run(self) -> None:
        try:
            self._action()
        finally:
            self._has_hold.set()

    def end(self) -> bool:
        """Take it away, and wait for what it set off; whether it happened."""
        for name in {self.point, "turn.scope_closed"}:
            gates.installed.pop(name, None)
        thread = self._thread
        if thread is not None:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), f"what was done at {self.point} does not come back"
        return thread is not None


def refused(action: Callable[[], Any]) -> Any:
    """The answer, or the refusal: only a 409 is one, and that the server is going down."""
    try:
        return action()
    except ServerError as error:
        if error.status != 409 and not isinstance(error, ShuttingDown):
            raise
        return error


@contextmanager
def quick_times() -> Iterator[Errors]:
    """What takes long in the product is short inside; the errors that it logs meanwhile."""
    errors = Errors()
    logger = logging.getLogger("core")
    logger.addHandler(errors)
    was = logger.propagate
    logger.propagate = False  # what tools are told to do is no news
    try:
        with mock.patch("core.plan.scheduler.ABANDON_AFTER_S", ABANDON_S), \
                mock.patch("core.tool.tool.Tool.ends_within_s", ABANDON_S * 0.9), \
                mock.patch("core.engine.call_pool.IDLE_S", 0.05):  # fmt: skip
            yield errors
    finally:
        logger.propagate = was
        logger.removeHandler(errors)
        gates.installed.clear()
        assert InputOutput._live == {}
        assert InputOutput.plan_is_stopped == [False]
