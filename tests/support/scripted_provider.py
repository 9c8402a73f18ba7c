"""A model and tools without a socket: each call waits at a gate, and the test says what it does next.

The :class:`Stage` knows every call that waits and every thread that works, so that a test can wait until nothing
moves any more, by events.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from core.call import Call, CallKind
from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope
from core.errors import ProviderNonsense
from core.provider.failures import ServerUnreachable, cancelled_by_gateway
from core.provider.model_call import ModelCall
from core.provider.provider import Delta, Finish, ModelRequest, Text, ToolCall, Usage
from core.session.turn import Turn
from core.tool.tool import Stops, Tool, ToolFailed, ToolResult, ToolRun

#: Seconds after which something hangs.
LIMIT_S: Final = 15.0


@dataclass(frozen=True)
class Answer:
    """The rest of a reply: what it says, the tools that it calls, and what it counted."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True)
class Output:
    """A piece of a tool's output."""

    text: str


class Limit:
    """A tool reaches a limit of its own."""


class Refused499:
    """The gateway cancels the request by itself."""


Command = Answer | Output | Limit | Refused499 | ToolResult | BaseException | str

#: What a call does when it is stopped. A deaf one does nothing until the test lets it go.
MODEL_MANNERS: Final = ("obeys", "is late", "breaks", "is deaf")
TOOL_MANNERS: Final = ("obeys", "shows what it has", "breaks", "fails", "exits", "is deaf")


class Gate:
    """A call that waits for the test. It is the call's wire, too: hanging up wakes it."""

    def __init__(self, stage: Stage, call: Call, number: int, subject: ModelRequest | dict[str, Any]) -> None:
        self.stage = stage
        self.call = call
        self.number = number
        self.subject = subject
        turn = call.scope.enclosing(Level.TURN)
        assert turn is not None
        self.turn_scope: Scope = turn
        self.owner = (turn.name, call.goal_id)
        self.manner = stage.manner_of(call)
        self.is_held = False
        self.is_asked = False
        self._is_shut = False
        self._commands: deque[Command] = deque()

    @property
    def is_model(self) -> bool:
        """A model call; else a tool."""
        return self.call.kind is CallKind.MODEL_CALL

    @property
    def is_left_behind(self) -> bool:
        """Deaf, and its turn, or its goal, went on without it."""
        return self.turn_scope.is_stopped or self.call.scope.is_stopped

    @property
    def rests(self) -> bool:
        """It waits for the test, and nothing else will wake it."""
        is_on_its_way = self._is_shut or self.call.scope.is_stopped
        return self.is_held and (not is_on_its_way or self.manner == "is deaf")

    @property
    def holds_its_goal(self) -> bool:
        """Its goal waits for it. One that is deaf to a stop is left behind soon; one that is deaf to a redirect is not."""
        cause = self.call.scope.cause
        return not self.call.ended.is_set() and (cause is None or cause.word is CauseWord.REDIRECT)

    def go(self, command: Command) -> None:
        """Let the call do this, and wait again or end."""
        with self.stage.changed:
            self.is_held = False
            self._commands.append(command)
            self.stage.changed.notify_all()

    def shut(self) -> None:
        """Hang up; for an abort."""
        with self.stage.changed:
            self._is_shut = True
            self.stage.changed.notify_all()

    def answer_499(self) -> None:
        """The gateway was asked, and agreed."""
        with self.stage.changed:
            self.is_asked = True
            self._is_shut = True
            self.stage.changed.notify_all()

    def let_go(self) -> None:
        """A deaf call comes back at last."""
        with self.stage.changed:
            self.manner = "is late"
            self.stage.changed.notify_all()

    def take(self) -> Command | None:
        """For the call: wait for what the test wants; None once it is stopped and not deaf."""
        with self.stage.changed:
            self.is_held = True
            self.stage.changed.notify_all()
            while True:
                if self._is_shut and self.manner != "is deaf":
                    self.is_held = False
                    return None
                if self._commands:
                    self.is_held = False
                    return self._commands.popleft()
                self.stage.changed.wait()


class Stage:
    """Who works on a server's turns, and who waits at a gate."""

    def __init__(self, has_long_waits: bool = False, manners: Sequence[int] = (0,)) -> None:
        self.changed = threading.Condition()
        self.gates: list[Gate] = []
        self.requests: list[tuple[str, ModelRequest]] = []
        self.turns: set[Turn] = set()
        #: Whether a call that is to be repeated waits until it is stopped.
        self.has_long_waits = has_long_waits
        self._manners = manners
        self._launched = 0
        self._jobs = {True: 0, False: 0}
        self._numbers = 0

    def manner_of(self, call: Call) -> str:
        """What this call will make of a stop: by its goal and the number of its goal's calls, the same each time."""
        nth = sum(gate.owner[1] == call.goal_id for gate in self.gates)
        manners = MODEL_MANNERS if call.kind is CallKind.MODEL_CALL else TOOL_MANNERS
        number = self._manners[(crc32(str(call.goal_id).encode()) + nth) % len(self._manners)]
        return manners[number % len(manners)]

    # -- for whoever works -------------------------------------------------------------------

    @contextlib.contextmanager
    def at_gate(self, call: Call, subject: ModelRequest | dict[str, Any]) -> Iterator[Gate]:
        """Inside, the call stands at a gate of its own."""
        with self.changed:
            self._numbers += 1
            gate = Gate(self, call, self._numbers, subject)
            self.gates.append(gate)
        try:
            yield gate
        finally:
            with self.changed:
                self.gates.remove(gate)
                self.changed.notify_all()

    def note_launch(self, count: int) -> None:
        """A turn is to be run, or (-1) has been."""
        with self.changed:
            self._launched += count
            self.changed.notify_all()

    def note_turn(self, turn: Turn, is_running: bool) -> None:
        """A turn's thread begins or ends."""
        with self.changed:
            (self.turns.add if is_running else self.turns.discard)(turn)
            self.changed.notify_all()

    def note_job(self, is_leaf: bool, count: int) -> None:
        """A pool thread has a job more, or less."""
        with self.changed:
            self._jobs[is_leaf] += count
            self.changed.notify_all()

    def notify(self) -> None:
        """Look again."""
        with self.changed:
            self.changed.notify_all()

    # -- for the test --------------------------------------------------------------------------

    def is_still(self) -> bool:
        """Whether nothing moves until the test does something: every call stands at a gate, or has ended."""
        if not all(gate.rests for gate in self.gates) or self._launched != len(self.turns):
            return False
        tools = [gate for gate in self.gates if not gate.is_model]
        owners = {gate.owner for gate in self.gates if gate.is_model or not gate.call.ended.is_set()}
        owners |= set(self._waits())
        if self._jobs != {True: len(owners), False: len(tools)}:
            return False
        at_work = {gate.owner[0] for gate in self.gates if gate.holds_its_goal} | {turn_id for turn_id, _ in self._waits()}
        return all(not turn.scope.is_stopped and turn.start.turn_id in at_work for turn in self.turns)

    def _waits(self) -> Iterator[tuple[str, str | None]]:
        if self.has_long_waits:
            for turn in self.turns:
                for call in turn.calls.snapshot():
                    if call.kind is CallKind.WAIT and not call.ended.is_set():
                        yield turn.start.turn_id, call.goal_id

    def wait_still(self) -> None:
        """Until nothing moves."""
        with self.changed:
            assert self.changed.wait_for(self.is_still, LIMIT_S), f"it does not come to rest: {self}"

    def open_gates(self) -> list[Gate]:
        """The calls that wait for the test, in an order that a repetition gives again."""
        with self.changed:
            return sorted(
                (gate for gate in self.gates if not gate.is_left_behind),
                key=lambda gate: (str(gate.owner[1]), str(gate.subject) if not gate.is_model else ""),
            )

    def left_behind(self) -> list[Gate]:
        """The deaf calls of turns that went on without them."""
        with self.changed:
            return [gate for gate in self.gates if gate.is_left_behind]

    def release(self) -> None:
        """Every deaf call comes back. Returns when all threads have left their calls."""
        for gate in self.left_behind():
            gate.let_go()
        with self.changed:
            assert self.changed.wait_for(lambda: not (self.gates or any(self._jobs.values())), LIMIT_S), str(self)

    def __str__(self) -> str:
        gates = [(*gate.owner, gate.call.kind.value, gate.is_held, gate.manner, gate._is_shut) for gate in self.gates]
        return f"turns {self.turns}, launched {self._launched}, jobs {self._jobs}, gates {gates}"


# -- the model -----------------------------------------------------------------------------------


class ScriptedProvider:
    """A model server. ``asking``: None if it cannot be asked to cancel; else what it makes of being asked."""

    def __init__(self, stage: Stage, asking: str | None) -> None:
        self.can_be_asked = asking is not None
        self._stage = stage
        self._asking = asking

    def stream(self, request: ModelRequest, call: ModelCall) -> Generator[Delta, None, None]:
        """See :class:`core.provider.provider.Provider`."""
        with self._stage.at_gate(call, request) as gate:
            call.wire = gate
            with call.scope.on_cancel(call.abort):
                call.mark_sent()
                self._stage.requests.append((gate.owner[0], request))
                yield from _reply(gate, call)

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """See :class:`core.provider.provider.Provider`."""
        if self._asking == "refuses":
            raise ProviderNonsense("no")
        if self._asking == "hangs":
            threading.Event().wait(timeout_s)  # what a gateway without an answer costs
            raise ServerUnreachable("no answer in time", is_retryable=False)
        if self._asking == "agrees":
            assert isinstance(call.wire, Gate)
            call.wire.answer_499()
        return "cancelled"  # one that agrees and does not end it is cut

    def close(self) -> None:
        """Nothing is open."""


def _reply(gate: Gate, call: ModelCall) -> Iterator[Delta]:
    while True:
        match gate.take():
            case str(words):
                yield Text(words)
            case Answer() as answer:
                yield from _rest(answer)
                return
            case Refused499():
                raise cancelled_by_gateway(call.scope)
            case BaseException() as error:
                raise error
            case _:
                break
    if gate.is_asked:
        raise cancelled_by_gateway(call.scope)
    if gate.manner == "breaks":
        raise ServerUnreachable("the connection was reset", is_retryable=True)
    if gate.manner == "is late":
        yield from _rest(Answer("LATE"))


def _rest(answer: Answer) -> Iterator[Delta]:
    if answer.text:
        yield Text(answer.text)
    if answer.usage is not None:
        yield answer.usage
    yield from answer.calls
    yield Finish("stop")


# -- tools -----------------------------------------------------------------------------------------


class ScriptedTool(Tool):
    """A tool that does what the test says."""

    description = "does what the test says"
    stops = Stops.ABORTS
    parameters: dict[str, Any] = {  # noqa: RUF012  # of the interface
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "additionalProperties": False,
    }

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self._stage = stage

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """See :class:`core.tool.tool.Tool`."""
        with self._stage.at_gate(run, arguments) as gate:
            try:
                with run.scope.on_cancel(gate.shut):
                    return _work(gate, run)
            except Cancelled:
                return _stopped(gate)


def _work(gate: Gate, run: ToolRun) -> ToolResult:
    while True:
        match gate.take():
            case Output(text):
                run.emit("stdout", text)
            case Limit():
                run.limit(Cause(CauseWord.OUTPUT_LIMIT, "too much"))
            case ToolResult() as result:
                return result
            case BaseException() as error:
                raise error
            case _:
                return ToolResult("LATE")


def _stopped(gate: Gate) -> ToolResult:
    match gate.manner:
        case "shows what it has" | "is late":
            return ToolResult("so far")
        case "breaks":
            raise RuntimeError("the clean-up failed")
        case "fails":
            raise ToolFailed("it failed while it was stopped")
        case "exits":
            raise SystemExit(1)
    raise  # noqa: PLE0704  # called where the stop was caught
