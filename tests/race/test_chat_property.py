"""Random chats: whatever users, models and tools do, and whenever the server is stopped or killed, after every step
the log, the rows, the transcript and every request are sound.

A step ends when nothing moves any more: every call stands at a gate of the test. During a step something may lie in
wait at one of the product's pause points: a stop, a message, a kill. Nothing that is drawn depends on what happened,
so that a failure can be repeated; what makes no sense at the moment becomes another message.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from core.errors import (
    MessageIsSettled,
    NotFound,
    NotInteractive,
    RedirectLimit,
    RunIsBusy,
    RunIsOver,
    ServerError,
    SessionIsBusy,
    TurnIsOver,
    TurnNotStopped,
)
from core.session.inbox import WAITING
from core.session.run_state import OPEN, TERMINAL
from core.tool.tool import ToolResult
from tests.support.chat_draws import (
    CLIENT_IDS,
    ENDINGS,
    MANNERS,
    MODES,
    MOVES,
    SINGLE_GOALS,
    Move,
    histories,
    plans,
)
from tests.support.chat_machine import BEGINNING, ENDING, IN_A_STOP, MIDDLE, make_template
from tests.support.chat_session import AMBUSHES, STOPS, ChatSession

SELDOM = st.sampled_from([False] * 7 + [True])
OFTEN = st.sampled_from([True, True, True, False])
Moves = Sequence[tuple[int, Move]]
PLAY = st.lists(st.tuples(st.integers(0, 3), MOVES), max_size=4)


def _at(*points: str) -> st.SearchStrategy[tuple[str, str] | None]:
    """Nothing, or something at one of these pause points."""
    return st.none() | st.none() | st.tuples(st.sampled_from(points), st.sampled_from(AMBUSHES))


AT_BEGINNING, AT_WORK, AT_END = _at(*BEGINNING), _at(*MIDDLE, *ENDING), _at(*MIDDLE, *ENDING, *ENDING)
AT_STOP = _at(*ENDING, *IN_A_STOP)
#: What may be answered to a message in each mode while a turn is at work.
DISPOSITIONS = {
    "queue": ("queued",), "steer": ("steered",), "redirect": ("steered", "redirected"),
    "interrupt": ("interrupted", "queued"),
}  # fmt: skip


class Chat(RuleBasedStateMachine):
    """What is done in a random chat, and what is answered where that is known beforehand."""

    template: ClassVar[Path]
    folders: ClassVar[Iterator[Path]]

    def __init__(self) -> None:
        super().__init__()
        self.chat: ChatSession

    @initialize(
        asking=st.sampled_from([None, "agrees", "agrees", "refuses", "hangs", "agrees and goes on"]),
        has_long_waits=SELDOM, is_titling=SELDOM, manners=MANNERS, group=st.sampled_from([1, 1, 500]),
    )  # fmt: skip
    def open(self, group: int, **options: Any) -> None:
        self.chat = ChatSession(self.template, self.folders, group, **options)

    def beware(self, ambush: tuple[str, str] | None) -> None:
        """In the next step, something happens when a pause point is reached."""
        if ambush is not None:
            self.chat.lie_in_wait(*ambush)

    # -- users -------------------------------------------------------------------------------------

    @rule(
        ending=ENDINGS, interactive=OFTEN, plan=st.none() | plans(), planning=st.sampled_from(["auto", "auto", "none"]),
        on_server_lost=st.sampled_from(["park", "resume"]), history=histories(), is_wrong=SELDOM,
        ambush=AT_BEGINNING, moves=PLAY,
    )  # fmt: skip
    def start_run(self, is_wrong: bool, ending: str, ambush: Any, moves: Moves, **fields: Any) -> None:
        self.beware(ambush)
        chat, state, is_calm = self.chat, self.chat.state, self.chat.is_calm
        is_live = state not in ("none", *TERMINAL)
        if is_live and not is_wrong:
            self.say(ending, moves=moves)
            return
        answer = chat.step(lambda: chat.start(chat.words(ending), **fields))
        if is_calm:
            assert isinstance(answer, SessionIsBusy) == is_live, answer
        self.play(moves)

    @rule(
        ending=ENDINGS, client_id=CLIENT_IDS, mode=MODES, goal=SINGLE_GOALS, ambush=AT_BEGINNING | AT_WORK, moves=PLAY
    )  # fmt: skip
    def say(
        self, ending: str = "", client_id: str | None = None, mode: str | None = None, goal: int | None = None,
        ambush: Any = None, moves: Moves = (),
    ) -> None:  # fmt: skip
        self.beware(ambush)
        chat, state, is_calm = self.chat, self.chat.state, self.chat.is_calm
        if chat.run is None:
            chat.step(lambda: chat.start(chat.words(ending), planning="none"))
            return
        is_interactive = chat.run["interactive"]
        answer = chat.step(lambda: chat.say(chat.words(ending), client_id, mode, goal))
        if is_calm and not isinstance(answer, dict):
            may_be = (RedirectLimit, NotFound) if is_interactive else (NotInteractive,)
            assert isinstance(answer, RunIsOver if state in TERMINAL else may_be)
        elif is_calm and answer["disposition"] != "duplicate":
            assert is_interactive
            is_parked = state == "awaiting_input"
            assert answer["disposition"] in (("started", "queued") if is_parked else DISPOSITIONS[mode or "queue"])
        self.play(moves)

    @rule(
        how=st.sampled_from(STOPS), inbox=st.sampled_from(["keep", "return", "drop"]),
        wait_ms=st.sampled_from([0, 10_000]), goes_on=st.booleans(), ambush=AT_STOP,
    )  # fmt: skip
    def stop(self, how: str, inbox: str, wait_ms: int, goes_on: bool, ambush: Any = None) -> None:
        self.beware(ambush)
        chat, state, is_calm = self.chat, self.chat.state, self.chat.is_calm
        if chat.run is None:
            self.say()
            return
        is_interactive = chat.run["interactive"]
        goes_on = goes_on and how == "cancel" and not is_interactive
        answer = chat.step(lambda: chat.stop(how, inbox, wait_ms, "go on" if goes_on else None))
        if not is_calm or how == "deadline":
            return
        if state in OPEN and (how != "cancel" or is_interactive or goes_on):
            assert answer.stopped
        elif isinstance(answer, ServerError):
            assert isinstance(answer, RunIsOver if state in TERMINAL else NotInteractive), answer
        else:
            assert answer is None or not answer.stopped

    @rule(index=st.integers(0, 5), position=st.none() | st.integers(0, 5), is_waiting=OFTEN)
    def change_inbox(self, index: int, position: int | None, is_waiting: bool) -> None:
        """A message is withdrawn, or put at another place; most often one that waits."""
        chat = self.chat
        of_run = [row for row in chat.log.messages if row["run_id"] == chat.run_id] if chat.log and chat.run else []
        found = [row for row in of_run if row["state"] in WAITING or not is_waiting]
        if not found:
            self.say()
            return
        message, is_calm = found[index % len(found)], chat.is_calm
        answer = chat.step(lambda: chat.change_inbox(message["id"], position))
        may = message["state"] in WAITING or (message["state"], position) == ("withdrawn", None)
        assert not is_calm or isinstance(answer, dict if may else MessageIsSettled), answer

    @rule(how=st.sampled_from(["roll_back", "regenerate", "resume", "resume"]), is_stopped_first=OFTEN, ambush=AT_BEGINNING)
    def go_back(self, how: str, is_stopped_first: bool, ambush: Any) -> None:
        chat = self.chat
        if chat.run is None:
            self.say()
            return
        if is_stopped_first and chat.state in OPEN:
            self.stop("cancel", "keep", 0, goes_on=False)
        self.beware(ambush)
        state, is_calm, turn = chat.state, chat.is_calm, chat.turn
        answer = chat.step(lambda: chat.go_back(how))
        if not is_calm:
            return
        is_stopped, is_in = turn["state"] != "completed", turn["left_out"] is None
        may = {"regenerate": True, "resume": is_stopped and is_in, "roll_back": is_stopped or not is_in}[how]
        assert isinstance(answer, dict) == (may and state == "awaiting_input"), answer
        if not isinstance(answer, dict):
            assert isinstance(answer, RunIsOver | NotInteractive | RunIsBusy | TurnNotStopped)
        elif how != "roll_back":
            assert chat.input_of(answer["turn_id"]) == turn["input"]

    # -- models and tools ------------------------------------------------------------------------------

    @rule(moves=PLAY, ambush=AT_WORK)
    def go_on(self, moves: Moves, ambush: Any) -> None:
        self.beware(ambush)
        if self.chat.gates:
            self.play(moves)
        else:
            self.say(moves=moves)

    def play(self, moves: Moves) -> None:
        """Calls that wait do something, one after the other."""
        for index, move in moves:
            gates = self.chat.gates
            if gates:
                gate = gates[index % len(gates)]
                self.chat.step(partial(gate.go, move.for_gate(gate)))

    @rule(ambush=AT_END, first=st.none() | st.tuples(st.integers(0, 3), MOVES))
    def come_to_an_end(self, ambush: Any = None, first: tuple[int, Move] | None = None) -> None:
        """Every call gives a plain answer, but the first."""
        self.play([first] if first is not None else ())
        self.beware(ambush)
        if self.chat.gates:
            self.chat.step(self.chat.answer_everything)
        else:
            self.say()

    @rule()
    def come_back_late(self) -> None:
        """What was abandoned says something at last."""
        left_behind = self.chat.server.stage.left_behind()
        for gate in left_behind:
            self.chat.step(gate.let_go)
        if not left_behind:
            self.come_to_an_end()

    # -- what comes at a bad moment -----------------------------------------------------------------------

    @rule(how=st.sampled_from(["gracefully", "killed now", "killed soon"]), commits=st.integers(1, 6))
    def restart(self, how: str, commits: int) -> None:
        """Stopped as by SIGTERM; killed while nothing moves; or killed in the next step, after so many commits."""
        if how == "killed soon":
            self.chat.kill_after = commits
        else:
            self.chat.step(self.chat.kill if how == "killed now" else self.chat.restart)

    def teardown(self) -> None:
        if hasattr(self, "chat"):
            self.chat.end()


class ChatOfParts(Chat):
    """A chat in which single goals and tool calls are stopped as well."""

    @rule(kind=st.sampled_from(["goal", "goal", "call"]), index=st.integers(0, 4), ambush=AT_WORK, moves=PLAY)
    def stop_part(self, kind: str, index: int, ambush: Any, moves: Moves) -> None:
        self.beware(ambush)
        chat, state, is_calm = self.chat, self.chat.state, self.chat.is_calm
        if chat.run is None:
            self.say()
            return
        answer = chat.step(lambda: chat.stop_part(kind, index))
        if is_calm and state not in OPEN:
            assert isinstance(answer, RunIsOver if state in TERMINAL else TurnIsOver), answer
        elif is_calm:
            assert isinstance(answer, dict | NotFound), answer
        self.play(moves)


@pytest.fixture(scope="module", autouse=True)
def _stores() -> Iterator[None]:
    """Folders for the stores, in memory where there is such a place: what is tried here is no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        Chat.template = make_template(Path(folder) / "template")
        Chat.folders = (Path(folder) / str(number) for number in itertools.count(1))
        yield


@pytest.mark.parametrize("point", ["engine.claimed", "goal.before_children", "agent.before_request"])
def test_a_goal_that_was_finished_is_not_made_again_when_the_resume_is_stopped_at_once_and_resumed(point: str) -> None:
    goals = [
        {"id": "a", "tool": {"name": "alpha", "arguments": {}}},
        {"id": "b", "prompt": "on it goes", "depends_on": ["a"]},
    ]
    chat = ChatSession(Chat.template, Chat.folders, 1)
    chat.step(lambda: chat.start("hello", plan={"goals": goals}))
    chat.step(lambda: chat.gates[0].go(ToolResult("done")))
    chat.step(lambda: chat.stop("cancel"))
    chat.lie_in_wait(point, "cancel")
    chat.step(lambda: chat.go_back("resume"))
    assert chat.turn["state"] == "cancelled"
    chat.step(lambda: chat.go_back("resume"))
    assert [gate.owner[1] for gate in chat.gates] == ["b"]
    chat.end()


@pytest.mark.parametrize("kind", ["goal", "call"])
def test_one_goal_or_one_call_of_a_chat_is_stopped_and_the_rest_goes_on(kind: str) -> None:
    goals = [
        {"id": "a", "tool": {"name": "alpha", "arguments": {}}}, {"id": "b", "prompt": "on it goes"},
        {"id": "c", "prompt": "never", "depends_on": ["a"]},
    ]  # fmt: skip
    chat = ChatSession(Chat.template, Chat.folders, 1)
    chat.step(lambda: chat.start("hello", plan={"goals": goals}))
    answer = chat.step(lambda: chat.stop_part(kind, 0))
    assert answer["stopped"] is True
    assert {gate.owner[1] for gate in chat.gates} <= {"a", "b"}
    chat.step(chat.answer_everything)
    assert chat.turn["state"] == "completed"
    chat.end()


def _try(examples: int, length: int, chat: type[Chat] = Chat) -> None:
    run_state_machine_as_test(
        chat,
        settings=settings(
            max_examples=examples, stateful_step_count=length, deadline=None, report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck), print_blob=True,
        ),
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_a_random_chat_is_sound_after_every_step() -> None:
    _try(15, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_random_chats_are_sound_after_every_step() -> None:
    _try(2000, 30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_chats_with_stops_of_single_goals_and_calls_are_sound_after_every_step() -> None:
    _try(200, 25, ChatOfParts)
