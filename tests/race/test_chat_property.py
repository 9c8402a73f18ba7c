"""Random chats: whatever users, models and tools do, and whenever the server is stopped or killed, after every step
the log, the rows, the transcript and every request are sound.

A step ends when nothing moves any more: every call stands at a gate of the test. Between the steps of users and
models something may lie in wait at one of the product's pause points: a stop, a message, a kill.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from core.cancellation import Cause, CauseWord
from core.engine.embedded import StopAnswer
from core.errors import NotInteractive, RunIsBusy, RunIsOver, ServerError, SessionIsBusy, TurnNotStopped
from core.session.records import NewRun, StopOrder
from core.session.run_state import OPEN, TERMINAL
from core.tool.tool import ToolResult
from tests.support.chat_draws import CLIENT_IDS, ENDINGS, MOVES, Move, histories, plans
from tests.support.chat_invariants import Log, Told, check, check_request, check_users
from tests.support.chat_machine import POINTS, Ambush, ChatServer, make_template, new_folder, quick_times, refused
from tests.support.core_kit import ALICE
from tests.support.scripted_provider import MODEL_MANNERS, TOOL_MANNERS, Answer, Gate

SESSION = "s1"
STOPS = ("cancel", "cancel", "stop plan", "stop session", "stop newest", "client gone", "deadline", "terminate")
#: Things that may happen at a pause point.
AMBUSHES = (
    "cancel", "cancel and return", "cancel and drop", "terminate", "stop plan", "deadline", "client gone", "say",
    "roll back", "regenerate", "resume", "kill",
)  # fmt: skip


class Chat(RuleBasedStateMachine):
    """One session, its runs one after the other, over the lives of several servers."""

    template: ClassVar[Path]
    folders: ClassVar[Iterator[Path]]

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self.errors = self._stack.enter_context(quick_times())
        self.server: ChatServer | None = None
        self.log: Log | None = None
        self.told = Told()
        self.numbers = itertools.count(1)
        self.ambush: Ambush | None = None
        #: The commit of the next step after which the server is killed; 0 for none.
        self.kill_after = 0
        #: A copy of the store as a kill left it, once one has come.
        self.killed: Path | None = None
        self.failures: list[BaseException] = []
        self.gates: list[Gate] = []

    @initialize(
        asking=st.sampled_from([None, "agrees", "agrees", "refuses", "hangs"]),
        has_long_waits=st.sampled_from([False, False, True]),
        is_titling=st.booleans(),
        group=st.sampled_from([1, 1, 500]),
    )
    def open(self, asking: str | None, has_long_waits: bool, is_titling: bool, group: int) -> None:
        self._stack.enter_context(mock.patch("core.store.writer.MAX_GROUP", group))
        folder = new_folder(self.template, next(self.folders))
        self.server = ChatServer(folder, asking, has_long_waits, is_titling)
        self.check()

    # -- what the test knows ------------------------------------------------------------------

    @property
    def run(self) -> dict[str, Any] | None:
        """The newest run as it was after the last step."""
        return self.log.runs[-1] if self.log is not None and self.log.runs else None

    @property
    def state(self) -> str:
        return str(self.run["state"]) if self.run is not None else "none"

    @property
    def turn(self) -> dict[str, Any]:
        """The newest turn of the newest run."""
        assert self.log is not None
        return self.log.turns[-1]

    @property
    def is_calm(self) -> bool:
        """Nothing lies in wait, so what is answered is known beforehand."""
        return self.ambush is None and not self.kill_after

    @property
    def main(self) -> Any:
        assert self.server is not None
        return self.server.main

    # -- a step ----------------------------------------------------------------------------------

    def step(self, action: Callable[[], Any]) -> Any:
        """Do it, wait until nothing moves, let a kill have its way, and check everything."""
        assert self.server is not None
        told = self.told.copy()
        with self.server.after_commits(self.kill_after, self._kill):
            answer = action()
            self.server.wait_still()
            ambush, self.ambush = self.ambush, None
            if ambush is not None and ambush.end():
                self.server.wait_still()
        self.kill_after = 0
        if self.failures:
            raise self.failures[0]
        if self.killed is not None:
            self.told = told
            self._begin_again(self.killed)
        self.check()
        return answer

    def check(self) -> None:
        assert self.server is not None
        self.gates = self.server.stage.open_gates()
        with self.main.reading() as connection:
            log = Log(connection, SESSION)
        check(log, self.log, self.told)
        requests, self.server.stage.requests[:] = list(self.server.stage.requests), []
        for turn_id, request in requests:
            check_request(request)
            if request.tools:
                check_users(log, turn_id, request)
        open_turns = [turn["id"] for turn in log.turns if turn["state"] == "open"]
        assert {gate.owner[0] for gate in self.gates} <= set(open_turns)
        if not open_turns:
            self.server.check_at_rest()
        assert self.errors.found == []
        self.log = log

    def _kill(self) -> None:
        assert self.server is not None
        if self.killed is None:
            self.killed = self.server.copy_store(next(self.folders))

    def _begin_again(self, copy: Path) -> None:
        """The server was killed when ``copy`` was made of its store. The old one must still end well, by itself."""
        assert self.server is not None
        self.killed = None
        old = self.server
        self.server = old.restart(copy)
        old.shut_down()
        shutil.rmtree(old.folder)
        self.server.wait_still()

    # -- users -------------------------------------------------------------------------------------

    def words(self, ending: str) -> str:
        return f"m{next(self.numbers)}{ending}"

    @rule(
        ending=ENDINGS, interactive=st.sampled_from([True, True, True, False]), plan=st.none() | plans(),
        planning=st.sampled_from(["auto", "none"]), on_server_lost=st.sampled_from(["park", "resume"]),
        history=histories(), is_wrong=st.sampled_from([False] * 7 + [True]),
    )  # fmt: skip
    def start_run(self, is_wrong: bool, ending: str, **fields: Any) -> None:
        if self.state not in ("none", *TERMINAL) and not is_wrong:
            self.say(ending, None)
            return
        is_calm, state = self.is_calm, self.state
        answer = self.step(lambda: self._start(NewRun(input=self.words(ending), session_id=SESSION, **fields)))
        if is_calm:
            assert isinstance(answer, SessionIsBusy) == (state not in ("none", *TERMINAL)), answer

    def _start(self, new: NewRun) -> Any:
        answer = refused(lambda: self.main.create_run(ALICE, new))
        if isinstance(answer, dict):
            self.told.runs.append(answer["run_id"])
        return answer

    @rule(ending=ENDINGS, client_id=CLIENT_IDS)
    def say(self, ending: str, client_id: str | None) -> None:
        if self.run is None:
            self.step(lambda: self._start(NewRun(self.words(ending), SESSION, planning="none")))
            return
        state, is_calm, is_interactive = self.state, self.is_calm, self.run["interactive"]
        answer = self.step(lambda: self._say(ending, client_id))
        if is_calm and not isinstance(answer, dict):
            assert isinstance(answer, RunIsOver if state in TERMINAL else NotInteractive)
        elif is_calm and answer["disposition"] != "duplicate":
            assert is_interactive
            assert answer["disposition"] in (("started", "queued") if state == "awaiting_input" else ("queued",))

    def _say(self, ending: str, client_id: str | None = None) -> Any:
        run_id, words = str(self.run and self.run["id"]), self.words(ending)
        answer = refused(lambda: self.main.post_input(ALICE, run_id, words, None, client_id))
        if isinstance(answer, dict):
            if answer["disposition"] == "duplicate":
                assert self.told.messages[answer["message_id"]][2] == client_id
            else:
                self.told.messages[answer["message_id"]] = (run_id, words, client_id)
        return answer

    @rule(
        how=st.sampled_from(STOPS), inbox=st.sampled_from(["keep", "return", "drop"]),
        wait_ms=st.sampled_from([0, 10_000]), goes_on=st.booleans(),
    )  # fmt: skip
    def stop(self, how: str, inbox: str, wait_ms: int, goes_on: bool) -> None:
        if self.run is None:
            self.say("", None)
            return
        state, is_calm, is_interactive = self.state, self.is_calm, self.run["interactive"]
        goes_on = goes_on and how == "cancel" and not is_interactive
        answer = self.step(lambda: self._stop(how, inbox, wait_ms, "go on" if goes_on else None))
        if not is_calm or how == "deadline":
            return
        if state in OPEN and (how != "cancel" or is_interactive or goes_on):
            assert answer.stopped
        elif isinstance(answer, ServerError):
            assert isinstance(answer, RunIsOver if state in TERMINAL else NotInteractive), answer
        else:
            assert answer is None or not answer.stopped

    def _stop(self, how: str, inbox: str = "keep", wait_ms: int = 0, continue_with: str | None = None) -> Any:
        run_id, turn_id = str(self.run and self.run["id"]), self.turn["id"]
        order = StopOrder(Cause(CauseWord.USER), inbox=inbox, continue_with=continue_with)
        actions: dict[str, Callable[[], Any]] = {
            "cancel": lambda: self.main.cancel_run(ALICE, run_id, order, None, wait_ms),
            "stop plan": lambda: self.main.stop_plan(ALICE),
            "stop session": lambda: self.main.stop_session(SESSION),
            "stop newest": self.main.stop_newest,
            "client gone": lambda: self.main.client_gone(ALICE, run_id, turn_id),
            "deadline": lambda: self.server and self.server.meet_deadline(run_id),
            "terminate": lambda: self.main.terminate_run(ALICE, run_id, "enough", wait_ms),
        }
        answer = refused(actions[how])
        if isinstance(answer, StopAnswer) and answer.stopped:
            self.told.stops.append((answer.run_id, str(answer.turn_id), answer.receipt))
        return answer

    @rule(how=st.sampled_from(["roll_back", "regenerate", "resume"]))
    def go_back(self, how: str) -> None:
        if self.run is None:
            self.say("", None)
            return
        state, is_calm, turn = self.state, self.is_calm, self.turn
        answer = self.step(lambda: self._go_back(how))
        if not is_calm:
            return
        is_stopped, is_in = turn["state"] != "completed", turn["left_out"] is None
        may = {"regenerate": True, "resume": is_stopped and is_in, "roll_back": is_stopped or not is_in}[how]
        assert isinstance(answer, dict) == (may and state == "awaiting_input"), answer
        if not isinstance(answer, dict):
            assert isinstance(answer, RunIsOver | NotInteractive | RunIsBusy | TurnNotStopped)
        elif how != "roll_back":
            assert (self.turn["id"], self.turn["input"]) == (answer["turn_id"], turn["input"])

    def _go_back(self, how: str) -> Any:
        run_id = str(self.run and self.run["id"])
        return refused(lambda: getattr(self.main, how)(ALICE, run_id, None))

    # -- models and tools ------------------------------------------------------------------------------

    @rule(moves=st.lists(st.tuples(st.integers(0, 3), MOVES), min_size=1, max_size=4))
    def go_on(self, moves: list[tuple[int, Move]]) -> None:
        """Calls that wait do something, one after the other."""
        for index, move in moves:
            if not self.gates:
                self.say("", None)
                return
            gate = self.gates[index % len(self.gates)]
            self.step(partial(gate.go, move.for_gate(gate)))

    @rule()
    def come_to_an_end(self) -> None:
        """Every call gives a plain answer, until no more are made."""
        if not self.gates:
            self.say("", None)
            return
        self.step(self._come_to_an_end)

    def _come_to_an_end(self) -> None:
        assert self.server is not None
        while gates := self.server.stage.open_gates():
            for gate in gates:
                gate.go(Answer("the answer") if gate.is_model else ToolResult("done"))
            self.server.stage.wait_still()

    @rule(index=st.integers(0, 3), manner=st.integers(0, 5))
    def mind(self, index: int, manner: int) -> None:
        """What a call will make of a stop."""
        if self.gates:
            gate = self.gates[index % len(self.gates)]
            manners = MODEL_MANNERS if gate.is_model else TOOL_MANNERS
            gate.manner = manners[manner % len(manners)]

    @rule()
    def come_back_late(self) -> None:
        """What was abandoned says something at last."""
        assert self.server is not None
        for gate in self.server.stage.left_behind():
            self.step(gate.let_go)

    # -- what comes at a bad moment -----------------------------------------------------------------------

    @rule(point=st.sampled_from(POINTS), what=st.sampled_from(AMBUSHES))
    def lie_in_wait(self, point: str, what: str) -> None:
        """In the next step, something happens at a pause point."""
        if self.ambush is not None:
            self.ambush.end()
        self.ambush = Ambush(point, lambda: self._pounce(what))

    def _pounce(self, what: str) -> None:
        try:
            if what == "kill":
                self._kill()
            elif self.run is None:
                self.main.stop_plan(ALICE)
            elif what == "say":
                self._say("")
            elif what in ("regenerate", "resume", "roll back"):
                self._go_back(what.replace(" ", "_"))
            else:
                kind, _, inbox = what.partition(" and ")
                self._stop(kind, inbox or "keep")
        except BaseException as error:
            self.failures.append(error)

    @rule(how=st.sampled_from(["gracefully", "killed now", "killed soon"]), commits=st.integers(1, 6))
    def restart(self, how: str, commits: int) -> None:
        """Stopped as by SIGTERM; killed while nothing moves; or killed in the next step, after so many commits."""
        assert self.server is not None
        if how == "gracefully":
            self.server.shut_down()
            self.server = self.server.restart()
            self.step(lambda: None)
        elif how == "killed now":
            self.step(self._kill)
        else:
            self.kill_after = commits

    # -- the end --------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            self._stack.close()

    def _end(self) -> None:
        if self.ambush is not None:
            self.ambush.end()
        self.ambush, self.kill_after = None, 0
        if self.state in OPEN:
            self.step(lambda: self._stop("terminate", wait_ms=10_000))
            assert self.state in TERMINAL
        if self.server is not None:
            self.server.shut_down()
            shutil.rmtree(self.server.folder)


@pytest.fixture(scope="module", autouse=True)
def _stores() -> Iterator[None]:
    """Folders for the stores, in memory where there is such a place: what is tried here is no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        Chat.template = make_template(Path(folder) / "template")
        Chat.folders = (Path(folder) / str(number) for number in itertools.count(1))
        yield


def _try(examples: int, length: int) -> None:
    run_state_machine_as_test(
        Chat,
        settings=settings(
            max_examples=examples, stateful_step_count=length, deadline=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
        ),
    )  # fmt: skip


def test_a_random_chat_is_sound_after_every_step() -> None:
    _try(60, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_random_chats_are_sound_after_every_step() -> None:
    _try(2000, 30)
