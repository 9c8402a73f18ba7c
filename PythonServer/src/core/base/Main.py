"""The use cases: what the routes call, one function a route. Knows no HTTP."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, select
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from core.agent.make_agents import agents_of, provider_of
from core.cancellation import Cause, CauseWord
from core.engine.answering import Answering
from core.engine.call_pool import CallPool
from core.engine.compactions import Compactions
from core.engine.embedded import Engine
from core.engine.recovery import settle_lost_turns
from core.engine.stopping import StopAnswer
from core.engine.talking import Talking
from core.errors import InvalidRequest, NotFound, RunIsOver, ServerError, StoreError
from core.extensions.skillsets.ChatBot.ChatBot2 import ChatBot2
from core.gates import pause_at
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec, check_plan
from core.session import going_back, queries
from core.session.access import Caller, find_run, find_session, no_such_session
from core.session.arrival import Arrival
from core.session.event_source import EventSource
from core.session.part_stop import PartStop
from core.session.portable import read_lines, session_lines
from core.session.records import NewRun, StopOrder
from core.session.replay import Replay
from core.session.run_state import TERMINAL
from core.session.starts import start_run
from core.session.transcript import read_transcript
from core.session.turn import Turn
from core.settings import Settings
from core.store.database import open_database
from core.store.feed import FeedHub
from core.store.tables import runs, sessions
from core.store.writer import Writer
from core.tool.registry import Toolbox
from core.tool.tool import MAX_ABANDONED, describe_promise

log = logging.getLogger(__name__)

#: Seconds that a shutdown waits for its turns before it ends the streams. A stop is bounded by 1.8 s.
PARK_S = 3.0

#: The servers of this process, oldest first: one, but in tests.
_servers: Final[list[Main]] = []


class Main:
    """One server: its store, its engine, its agents. Make one a process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = open_database(settings.database_url, settings.data_dir)
        self.hub = FeedHub()
        self._replay = Replay(self.reading)
        self.writer = Writer(self.database, self.hub)
        following = settle_lost_turns(self.writer)
        cancel_timeout_s = settings.cancel_timeout_ms / 1000
        self._provider = provider_of(settings)
        self._toolbox = Toolbox(settings)
        self.agents = agents_of(settings, self._provider, self._toolbox)
        pool = CallPool(settings.call_threads)
        skillset = ChatBot2(self.agents, self.database, settings.auto_title, settings.compact_at_tokens)
        self.engine = Engine(self.writer, skillset, pool, settings.turn_workers, cancel_timeout_s, settings.idle_limit_ms)
        #: Messages into runs.
        self.talk = Talking(self.engine, self.reading)
        self.compactions = Compactions(self.engine)
        #: Questions to the user, from the user's side.
        self.answering = Answering(self.engine, self.reading)
        self._toolbox.start()
        for start in following:
            self.engine.launch(start)
        _servers.append(self)

    # -- starting and talking ----------------------------------------------------------------

    def create_run(self, caller: Caller, new: NewRun) -> dict[str, Any]:
        """Start a run with its first turn; durable when it returns."""
        if new.agent not in self.agents:
            raise InvalidRequest(f"there is no agent {new.agent!r}", errors=[{"field": "agent", "message": "unknown"}])
        if new.plan is not None:
            tools = {name: agent.profile.tools for name, agent in self.agents.items()}
            check_plan(PlanSpec.model_validate(new.plan), agents=tools, agent=new.agent)
        return self.engine.accept(lambda tx: start_run(tx, caller, new))

    def roll_back(self, caller: Caller, run_id: str, if_turn: str | None) -> dict[str, Any]:
        """Take the newest turn, which was stopped or failed, out of the transcript."""
        return self.engine.accept(lambda tx: (going_back.roll_back(tx, caller, run_id, if_turn), None))

    def regenerate(self, caller: Caller, run_id: str, if_turn: str | None) -> dict[str, Any]:
        """Ask the newest turn's message again, in its place."""
        return self.engine.accept(lambda tx: going_back.regenerate(tx, caller, run_id, if_turn))

    def resume(self, caller: Caller, run_id: str, if_turn: str | None) -> dict[str, Any]:
        """Take up the newest turn, which was stopped or failed, where it was stopped."""
        return self.engine.accept(lambda tx: going_back.resume(tx, caller, run_id, if_turn))

    # -- stopping --------------------------------------------------------------------------------

    def cancel_run(
        self, caller: Caller, run_id: str, order: StopOrder, if_turn: str | None, wait_ms: int
    ) -> StopAnswer:
        """Stop the current turn; the run parks, or goes on with ``order.continue_with``."""
        return self.engine.stopping.stop(self._find(caller, run_id), order, if_turn, wait_ms / 1000)

    def terminate_run(self, caller: Caller, run_id: str, reason: str | None, wait_ms: int) -> StopAnswer:
        """End the run, and the turn with it."""
        order = StopOrder(Cause(CauseWord.USER, reason), ends_run=True)
        try:
            return self.engine.stopping.stop(self._find(caller, run_id), order, None, wait_ms / 1000)
        except RunIsOver:
            run = self._find(caller, run_id)
            if run["state"] != "cancelled":
                raise
            return StopAnswer(run_id, run["turn_id"], False, run["state"], [])

    def cancel_goal(
        self, caller: Caller, run_id: str, goal_id: str, cause: Cause, if_turn: str | None, wait_ms: int
    ) -> dict[str, Any]:
        """Stop one goal of the current turn: its dependents follow, its siblings go on."""
        def stop(turn: Turn) -> PartStop:
            return turn.parts.stop_goal(goal_id, cause)

        return self.engine.stopping.stop_part(self._find(caller, run_id), stop, if_turn, wait_ms / 1000)

    def cancel_call(
        self, caller: Caller, run_id: str, call_id: str, cause: Cause, if_turn: str | None, wait_ms: int
    ) -> dict[str, Any]:
        """Stop one tool call of the current turn: the model is told, and goes on."""
        def stop(turn: Turn) -> PartStop:
            return turn.parts.stop_call(call_id, cause)

        return self.engine.stopping.stop_part(self._find(caller, run_id), stop, if_turn, wait_ms / 1000)

    def stop_plan(self, caller: Caller) -> StopAnswer | None:
        """Stop the plan of the caller's session, else of the newest turn; None if there is none."""
        with self.reading() as connection:
            run = queries.newest_open_run(connection, caller)
        if run is None:
            return None
        return self._stop_plan_of(run)

    def stop_session(self, session_id: str) -> StopAnswer | None:
        """Stop the plan of a session, on the word of the service that holds the remote session API token."""
        with self.reading() as connection:
            run = queries.live_run_of_session(connection, session_id)
            if run is None and connection.execute(select(sessions).where(sessions.c.id == session_id)).first() is None:
                raise NotFound("there is no such session")
        if run is None or run["state"] == "awaiting_input":
            return None
        return self._stop_plan_of(run)

    def stop_newest(self) -> StopAnswer | None:
        """Stop the plan of the newest turn that runs here, whoever's it is: for code inside this process."""
        turns = self.engine.live_turns()
        if not turns:
            return None
        with self.reading() as connection:
            run = connection.execute(select(runs).where(runs.c.id == turns[-1].start.run_id)).mappings().one()
        return self._stop_plan_of(run)

    def _stop_plan_of(self, run: Any) -> StopAnswer | None:
        try:
            return self.engine.stopping.stop(run, StopOrder(Cause(CauseWord.USER), ends_run=not run["interactive"]))
        except RunIsOver:
            return None  # it ended an instant ago

    def client_gone(self, caller: Caller, run_id: str, turn_id: str) -> StopAnswer | None:
        """The reader that wanted its turn stopped on hanging up has hung up."""
        if self.engine.is_closing:
            return None  # its stream was ended by us, and a turn that waits for answers goes on with the next server
        run = self._find(caller, run_id)
        order = StopOrder(Cause(CauseWord.CLIENT_GONE), ends_run=not run["interactive"])
        return self.engine.stopping.stop(run, order, turn_id)

    # -- reading ---------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection to read what is committed. :class:`StoreError` if the store cannot be read now."""
        try:
            with self.database.connect() as connection:
                yield connection
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            log.error("could not read the store: %s", type(error).__name__)
            raise StoreError("The server could not read its store; try again") from error

    def _find(self, caller: Caller, run_id: str) -> Any:
        with self.reading() as connection:
            return find_run(connection, caller, run_id)

    def list_runs(
        self, caller: Caller, session_id: str | None, state: str | None, cursor: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of the caller's runs."""
        with self.reading() as connection:
            return queries.list_runs(connection, caller, session_id, state, cursor, limit)

    def get_run(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """One run."""
        with self.reading() as connection:
            run = find_run(connection, caller, run_id)
            return {
                **queries.run_view(run, queries.session_title(connection, run["session_id"])),
                "last_seq": queries.last_seq(connection, run_id),
                "usage": queries.run_usage(connection, run_id),
            }

    def get_plan(self, caller: Caller, run_id: str, turn_id: str | None) -> dict[str, Any]:
        """The plan of a turn, by default of the newest."""
        with self.reading() as connection:
            return queries.plan_view(connection, find_run(connection, caller, run_id), turn_id)

    def get_transcript(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """What was said in the run's session."""
        with self.reading() as connection:
            run = find_run(connection, caller, run_id)
            said = read_transcript(connection, run["session_id"])
        return {"run_id": run_id, "session_id": run["session_id"], "messages": said}

    def get_receipts(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """The receipts of the run's stopped turns."""
        with self.reading() as connection:
            return {"receipts": queries.receipts(connection, find_run(connection, caller, run_id)["id"])}

    def export_session(self, caller: Caller, session_id: str) -> list[dict[str, Any]]:
        """The lines of a session; see :mod:`core.session.portable`."""
        with self.reading() as connection:
            session = find_session(connection, caller, session_id)
            if session is None:
                raise no_such_session()
            return list(session_lines(connection, session))

    def import_session(self, caller: Caller, session_id: str | None, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """Make a session of exported lines, under its own id or another; durable when it returns."""
        read = read_lines(lines)
        arrival = Arrival(session_id or caller.session_id or read[0].session_id, read)
        with self.reading() as connection:
            arrival.check_free(connection, caller)
        try:
            for write in arrival.pieces():
                self.engine.accept(write)
            pause_at("main.before_arrival")
            return self.engine.accept(lambda tx: (arrival.take_in(tx, caller), None))
        except ServerError:
            with contextlib.suppress(ServerError):  # then it stays where nobody sees it
                for clear in arrival.clearing():
                    self.engine.decide(clear)
            raise

    def read_events(self, caller: Caller, run_id: str) -> EventSource:
        """The run's events, to be read from any point on; checks the owner now."""
        with self.reading() as connection:
            run = find_run(connection, caller, run_id)
            last_seq = queries.last_seq(connection, run_id)
        return EventSource(self.hub, self._replay, run_id, run["state"] in TERMINAL, last_seq)

    def list_tools(self) -> dict[str, Any]:
        """Every tool that is allowed here, which agent may call which, and how the MCP servers are doing."""
        tools = self._toolbox.of(None)
        return {
            "tools": [describe_promise(tool) for tool in tools.values()],
            "agents": [{"agent": name, "tools": list(agent.profile.tools)} for name, agent in self.agents.items()],
            "mcp_servers": self._toolbox.mcp_status,
        }

    # -- how it is doing -----------------------------------------------------------------------------

    def why_not_ready(self) -> str | None:
        """What keeps the server from serving, in one sentence; None if nothing does."""
        if self.engine.is_closing:
            return "the server is shutting down"
        if not self.writer.is_healthy and not self.writer.try_again():
            return "the store did not take the last write"
        if self.engine.pool.abandoned >= MAX_ABANDONED:
            return f"{self.engine.pool.abandoned} threads of tools did not end when they were stopped: restart the server"
        return None

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, meaning, value."""
        return [
            ("pythonserver_live_turns", "Turns that run here", len(self.engine.live_turns())),
            ("pythonserver_running_calls", "Places of CALL_THREADS in use", self.engine.pool.busy),
            ("pythonserver_abandoned_threads", "Threads that outlived a stop", self.engine.pool.abandoned),
            ("pythonserver_stream_readers", "Open event streams", self.hub.count_readers()),
        ]

    # -- going down --------------------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """Stop every turn as ``shutdown``, start nothing more, and end the streams once the turns are parked."""
        self.engine.shut_down()
        self.engine.wait_parked(PARK_S)  # so that readers see how their turns ended
        self.hub.close()

    def close(self, timeout_s: float) -> None:
        """Wait ``timeout_s`` at most until the turns are parked and everything is written; let go of the store."""
        deadline = time.monotonic() + timeout_s
        if not self.engine.wait_parked(timeout_s):
            log.warning("turns are still open; the next start settles them")
        self.hub.close()
        self.writer.close(max(0.1, deadline - time.monotonic()))
        self.database.dispose()
        self._provider.close()
        self._toolbox.close()
        if self in _servers:
            _servers.remove(self)


# -- the documented surface ------------------------------------------------------------------


def get_global_plan(main: Main | None = None) -> Plan | None:
    """The plan of the newest turn that runs in this process; None if none does. ``main``: of that server."""
    server = main or (_servers[-1] if _servers else None)
    turns = server.engine.live_turns() if server is not None else []
    return turns[-1].plan if turns else None


def post_stopplan_data(
    stop: Callable[[], StopAnswer | None] | None = None,
) -> tuple[bool, dict[str, Any] | None, ServerError | None, int]:
    """Stop a plan: ``(success, data, error, status_code)``; ``str(error)`` is its message.

    ``stop`` is :meth:`Main.stop_plan` or :meth:`Main.stop_session` with its argument; without it, the global plan is
    meant (:func:`get_global_plan`). By the time this returns the plan's scope is closed, its model requests were
    cancelled, the stop flag is set, and the stop is recorded; the plan may still be unwinding. Only an internal error
    gives 500, and the stop holds all the same.
    """
    message = "Plan stopped successfully"
    try:
        answer = (stop or _stop_global_plan)()
    except ServerError as error:
        return False, None, error, error.status
    except Exception:
        log.exception("a stop failed inside")
        return False, None, ServerError("The server failed; the log says why"), ServerError.status
    if answer is None or not answer.stopped:  # there was nothing, or it ended an instant ago
        return True, {"message": message, "stopped": False}, None, 200
    data = {"run_id": answer.run_id, "turn_id": answer.turn_id, "receipt": answer.receipt}
    return True, {"message": message, "stopped": True, **data}, None, 200


def _stop_global_plan() -> StopAnswer | None:
    return _servers[-1].stop_newest() if _servers else None
