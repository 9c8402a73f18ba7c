"""A session in the hands of a random test: what is done to it, what was answered, and what lies in wait for it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from core.base.Main import Main
from core.cancellation import Cause, CauseWord
from core.engine.stopping import StopAnswer
from core.errors import NotFound
from core.provider.provider import ModelRequest, ToolCall
from core.session.records import NewMessage, NewRun, StopOrder
from core.session.run_state import OPEN, TERMINAL
from core.tool.tool import ToolResult
from tests.support.chat_invariants import Log, Told, check, parts_of
from tests.support.chat_machine import Ambush, ChatServer, new_folder, quick_times, refused
from tests.support.chat_users import check_users
from tests.support.core_kit import ALICE
from tests.support.scripted_provider import Answer, Command, Gate
from tests.support.strict_request import check_request

SESSION = "s1"
STOPS = ("cancel", "cancel", "stop plan", "stop session", "stop newest", "client gone", "deadline", "terminate")
#: Things that may happen at a pause point.
AMBUSHES = (
    "cancel", "cancel and return", "cancel and drop", "terminate", "stop plan", "deadline", "client gone",
    "say", "steer", "redirect", "redirect", "interrupt", "roll_back", "regenerate", "resume", "kill", "kill",
)  # fmt: skip
#: What a plain model plans.
_PLAN = ToolCall(
    "1", "make_plan",
    json.dumps({"goals": [
        {"id": "a", "title": "a", "prompt": "do a"},
        {"id": "b", "title": "b", "prompt": "do b"},
        {"id": "c", "title": "c", "prompt": "do c", "depends_on": ["a"]},
    ]}),
)  # fmt: skip


class ChatSession:
    """One session, its runs one after the other, over the lives of several servers."""

    def __init__(self, template: Path, folders: Iterator[Path], group: int, **options: Any) -> None:
        """``group``: items of a commit, at most. The rest is for :class:`ChatServer`."""
        self._stack = ExitStack()
        self._folders = folders
        self._errors = self._stack.enter_context(quick_times())
        self._stack.enter_context(mock.patch("core.store.writer.MAX_GROUP", group))
        self.server = ChatServer(new_folder(template, next(folders)), **options)
        self.log: Log | None = None
        self._told = Told()
        self._numbers = itertools.count(1)
        self.gates: list[Gate] = []
        #: What models were asked so far, each with its turn.
        self.requests: list[tuple[str, ModelRequest]] = []
        self._ambush: Ambush | None = None
        #: The commit of the next step after which the server is killed; 0 for none.
        self.kill_after = 0
        # A copy of the store as a kill left it, once one has come.
        self._killed: Path | None = None
        self._failures: list[BaseException] = []
        self.check()

    # -- what is known ----------------------------------------------------------------------------

    @property
    def main(self) -> Main:
        """The server that lives now."""
        return self.server.main

    @property
    def run(self) -> dict[str, Any] | None:
        """The newest run as it was after the last step."""
        return self.log.runs[-1] if self.log is not None and self.log.runs else None

    @property
    def run_id(self) -> str:
        """Its id."""
        assert self.run is not None
        return str(self.run["id"])

    @property
    def state(self) -> str:
        """Its state, or ``none``."""
        return str(self.run["state"]) if self.run is not None else "none"

    @property
    def turn(self) -> dict[str, Any]:
        """Its newest turn."""
        assert self.log is not None
        return self.log.turns[-1]

    def input_of(self, turn_id: str) -> str:
        """What was asked in that turn, which need not be the newest any more."""
        assert self.log is not None
        return str(next(turn["input"] for turn in self.log.turns if turn["id"] == turn_id))

    @property
    def is_calm(self) -> bool:
        """Nothing lies in wait, so what is answered is known beforehand."""
        return self._ambush is None and not self.kill_after

    # -- a step ----------------------------------------------------------------------------------

    def step(self, action: Callable[[], Any]) -> Any:
        """Do it, wait until nothing moves, let a kill have its way, and check everything."""
        told = self._told.copy()
        with self.server.after_commits(self.kill_after, self.kill):
            answer = action()
            self.server.wait_still()
            if self._end_ambush():
                self.server.wait_still()
        self.kill_after = 0
        if self._killed is not None:
            self._told = told
            self._begin_again(self._killed)
        self.check()
        return answer

    def _end_ambush(self) -> bool:
        ambush, self._ambush = self._ambush, None
        happened = ambush is not None and ambush.end()
        if self._failures:
            raise self._failures[0]
        return happened

    def check(self) -> None:
        """Every invariant."""
        stage = self.server.stage
        self.gates = stage.open_gates()
        with self.main.reading() as connection:
            log = Log(connection, SESSION)
        check(log, self.log, self._told)
        requests, stage.requests[:] = list(stage.requests), []
        self.requests += requests
        for turn_id, request in requests:
            check_request(request)
            if request.tools:
                check_users(log, turn_id, request)
        open_turns = [turn["id"] for turn in log.turns if turn["state"] == "open"]
        assert {gate.owner[0] for gate in self.gates} <= set(open_turns)
        if not open_turns:
            self.server.check_at_rest()
        assert not self._errors.found, "\n".join(self._errors.found)
        self.log = log

    # -- what is done ------------------------------------------------------------------------------

    def words(self, ending: str) -> str:
        """What a user says next: no two the same."""
        return f"m{next(self._numbers)}{ending}"

    def start(self, text: str, **fields: Any) -> Any:
        """Start a run."""
        new = NewRun(input=text, session_id=SESSION, **fields)
        answer = refused(lambda: self.main.create_run(ALICE, new))
        if isinstance(answer, dict):
            self._told.runs.append(answer["run_id"])
        return answer

    def say(
        self, text: str, client_id: str | None = None, mode: str | None = None, goal: int | None = None,
        if_turn: str | None = None,
    ) -> Any:  # fmt: skip
        """A message to the newest run; ``goal``: only for that goal of its newest turn, or one that is not there."""
        run_id = self.run_id
        goals = self._parts("goal")
        goal_id = None if goal is None else goals[goal % len(goals)] if goals else "nothing"
        message = NewMessage(text, mode, goal_id, if_turn=if_turn, client_message_id=client_id)
        try:
            answer = refused(lambda: self.main.talk.post_input(ALICE, run_id, message))
        except NotFound as error:  # the current turn has no such goal
            assert goal is not None
            return error
        if isinstance(answer, dict):
            known = self._told.messages.get(answer["message_id"])
            if answer["disposition"] != "duplicate":
                assert known is None
                self._told.messages[answer["message_id"]] = (run_id, text, client_id)
            else:
                assert known is None or known[2] == client_id  # it may be of before a kill
            if answer["disposition"] == "interrupted":
                self._told.stops.append((run_id, answer["turn_id"], answer.get("receipt", [])))
        return answer

    def stop(self, how: str, inbox: str = "keep", wait_ms: int = 0, continue_with: str | None = None) -> Any:
        """One of ``STOPS``."""
        run_id, turn_id = self.run_id, self.turn["id"]
        order = StopOrder(Cause(CauseWord.USER), inbox=inbox, continue_with=continue_with)
        actions: dict[str, Callable[[], Any]] = {
            "cancel": lambda: self.main.cancel_run(ALICE, run_id, order, None, wait_ms),
            "stop plan": lambda: self.main.stop_plan(ALICE),
            "stop session": lambda: self.main.stop_session(SESSION),
            "stop newest": self.main.stop_newest,
            "client gone": lambda: self.main.client_gone(ALICE, run_id, turn_id),
            "deadline": lambda: self.server.meet_deadline(run_id),
            "terminate": lambda: self.main.terminate_run(ALICE, run_id, "enough", wait_ms),
        }
        answer = refused(actions[how])
        if isinstance(answer, StopAnswer) and answer.stopped:
            self._told.stops.append((answer.run_id, str(answer.turn_id), answer.receipt))
        if isinstance(answer, StopAnswer) and answer.inbox is not None:
            self._told.fates += [(each, fate) for fate in ("returned", "withdrawn") for each in answer.inbox[fate]]
        if isinstance(answer, StopAnswer) and how == "terminate":
            self._told.ended.append(run_id)
        return answer

    def stop_part(self, kind: str, index: int) -> Any:
        """Stop one ``goal`` or ``call`` of the newest turn, whether it runs or not; or one that is not there.

        Waits for its end: what does not listen is left behind by the clock, which is nothing that the stage sees.
        """
        run_id = self.run_id
        parts = self._parts(kind)
        part_id = parts[index % len(parts)] if parts else "nothing"
        cause = Cause(CauseWord.USER, "not this one")
        stop = self.main.cancel_goal if kind == "goal" else self.main.cancel_call
        try:
            answer = refused(lambda: stop(ALICE, run_id, part_id, cause, None, 10_000))
        except NotFound as error:  # not there yet, or beside the plan, where the title is made
            return error
        if isinstance(answer, dict) and answer["stopped"]:
            self._told.parts.append((answer["turn_id"], answer["goal_id"], answer["call_id"]))
        return answer

    def _parts(self, kind: str) -> list[str]:
        return parts_of(self.log.of_turn(self.turn), kind) if self.log is not None and self.run is not None else []

    def change_inbox(self, message_id: str, position: int | None) -> Any:
        """Put a message of the newest run at another place; None: withdraw it."""
        run_id, talk = self.run_id, self.main.talk
        if position is not None:
            return refused(lambda: talk.move_message(ALICE, run_id, message_id, position))
        answer = refused(lambda: talk.withdraw_message(ALICE, run_id, message_id))
        if isinstance(answer, dict):
            self._told.fates.append((message_id, "withdrawn"))
        return answer

    def go_back(self, how: str) -> Any:
        """``roll_back``, ``regenerate`` or ``resume``."""
        run_id = self.run_id
        return refused(lambda: getattr(self.main, how)(ALICE, run_id, None))

    def answer_everything(self) -> None:
        """Every call gives a plain answer, and the planner a plan, until no more are made."""
        while gates := self.server.stage.open_gates():
            for gate in gates:
                gate.go(_plain_answer(gate))
            self.server.stage.wait_still()

    # -- what comes at a bad moment ------------------------------------------------------------------

    def lie_in_wait(self, point: str, what: str) -> None:
        """In the next step, ``what`` of ``AMBUSHES`` happens when a pause point is reached."""
        self._end_ambush()
        self._ambush = Ambush(point, lambda: self._pounce(what))

    def _pounce(self, what: str) -> None:
        try:
            if what == "kill":
                self.kill()
            elif self.run is None:
                self.main.stop_plan(ALICE)
            elif what in ("say", "steer", "redirect", "interrupt"):
                self.say(self.words(""), mode="queue" if what == "say" else what)
            elif what in ("regenerate", "resume", "roll_back"):
                self.go_back(what)
            else:
                kind, _, inbox = what.partition(" and ")
                self.stop(kind, inbox or "keep")
        except BaseException as error:
            self._failures.append(error)

    def kill(self) -> None:
        """Remember the store as it is now: after this step, that is all that is left."""
        if self._killed is None:
            self._killed = self.server.copy_store(next(self._folders))

    def _begin_again(self, copy: Path) -> None:
        """Another server starts with what the kill left. The old one must still end well, in its own store."""
        self._killed = None
        old = self.server
        self.server = old.restart(copy)
        old.shut_down()
        shutil.rmtree(old.folder)
        self.server.wait_still()

    def restart(self) -> None:
        """As by SIGTERM. What lies in wait may come while the turns are stopped."""
        self.server.begin_shutdown()
        self._end_ambush()
        self.server.close()
        self.server = self.server.restart()
        self.server.wait_still()

    def end(self) -> None:
        """Everything parks or ends, and nothing is left."""
        try:
            self._end_ambush()
            self.kill_after = 0
            if self.state in OPEN:
                self.step(lambda: self.stop("terminate", wait_ms=10_000))
                assert self.state in TERMINAL
            self.server.shut_down()
            shutil.rmtree(self.server.folder)
        finally:
            self._stack.close()


def _plain_answer(gate: Gate) -> Command:
    if not isinstance(gate.subject, ModelRequest):
        return ToolResult("done")
    return Answer("the answer", (_PLAN,) if gate.subject.must_call else ())
