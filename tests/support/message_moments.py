"""The moments of the message matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from core import gates
from tests.support.api_client import Run
from tests.support.compacting import ask_compact, start_talk
from tests.support.delegating import ENDLESS, delegate_line, sub_goal
from tests.support.going_back import of_type
from tests.support.message_fates import end_of
from tests.support.message_matrix import AFTER_TEXT, BEFORE_FIRST, CUTTING, Expected, Moment, Way, World
from tests.support.model_server import script
from tests.support.own_tools import stages
from tests.support.plans import say_done
from tests.support.questions import answer, ask_line, calls_line, interrupts, wait_question
from tests.support.servers import gate

STARTS, FOLLOWS, GOES_IN, REPLACES = Way.STARTS, Way.FOLLOWS, Way.GOES_IN, Way.REPLACES


def _same(expected: Expected) -> Mapping[str, Expected]:
    return dict.fromkeys(("queue", "steer", "redirect", "interrupt"), expected)


@contextmanager
def _held_at(world: World, point: str) -> Iterator[Run]:
    """A run that is answered at once, held at that point."""
    with gate(point) as reached:
        run = world.api.start(say_done(world.key))
        reached.wait_reached()
        yield run


class Parked(Moment):
    """Nothing runs."""

    name = "parked"
    expected: ClassVar = _same(Expected("started", STARTS, "UAU", 2))

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        run = world.api.start(say_done(world.key))
        run.wait_parked()
        yield run


class NotBegun(Moment):
    """The turn is accepted, and nobody has begun to work on it."""

    name = "not begun"
    expected: ClassVar = {
        "queue": Expected("queued", FOLLOWS, "UAU", 2),
        "steer": Expected("steered", GOES_IN, "UAU", 1),
        "redirect": Expected("steered", GOES_IN, "UAU", 1),
        "interrupt": Expected("interrupted", REPLACES, "UAU", 1),
    }

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        with _held_at(world, "engine.claimed") as run:
            assert run.state == "queued"
            yield run


class Planning(Moment):
    """The plan is being made. A redirect has it made again; a steer waits for it."""

    name = "planning"
    planning = "auto"
    is_answering = True
    is_plain = False
    expected: ClassVar = {
        "queue": Expected("queued", FOLLOWS, "UAU", 4),
        "steer": Expected("steered", GOES_IN, "UAU", 2),
        "redirect": Expected("redirected", GOES_IN, "UAU", 3),
        "interrupt": Expected("interrupted", REPLACES, "UAU", 3),
    }

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        if mode in CUTTING:
            run = world.api.start(script("silent", on="plan", key=world.key), planning="auto")
            world.models.wait_open(1, key=world.key)
            yield run
            return
        goals = [{"id": "one", "title": "one", "prompt": say_done(world.key)}]
        with gate(BEFORE_FIRST) as planning:
            line = script("plan", plan=goals, key=world.key)
            run = world.api.start(f"{line}\n{say_done(world.key)}", planning="auto")
            planning.wait_reached()
            yield run

    def check(self, world: World, run: Run, mode: str) -> None:
        """The plan was asked for again with what it was redirected by, and with nothing that only steers."""
        plans = [call for call in world.models.calls(key=world.key) if call.must_call]
        assert len(plans) == (1 if mode == "steer" else 2)
        if mode == "redirect":
            assert [each["role"] for each in plans[1].messages[1:]] == ["user", "assistant", "user"]
            assert plans[1].messages[-2]["content"] == "[stopped: redirect before any text]"


class _Answering(Moment):
    """A model is asked in the first round of a goal."""

    is_answering = True
    providers = ("de2generator", "openai", "anthropic")
    expected: ClassVar = {
        "queue": Expected("queued", FOLLOWS, "UAU", 2),
        "steer": Expected("steered", FOLLOWS, "UAU", 2),
        "redirect": Expected("redirected", GOES_IN, "UAU", 2),
        "interrupt": Expected("interrupted", REPLACES, "UAU", 2),
    }
    gate: ClassVar[str]

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        if mode in CUTTING:
            run = world.api.start(self._endless_line(world))
            self._wait_answering(world, run)
            yield run
            return
        with _held_at(world, self.gate) as run:
            yield run

    def _endless_line(self, world: World) -> str:
        raise NotImplementedError

    def _wait_answering(self, world: World, run: Run) -> None:
        raise NotImplementedError

    def check(self, world: World, run: Run, mode: str) -> None:
        """The answer that was cut off has ended for everybody."""
        if mode in CUTTING:
            check_cut(world)


class BeforeFirstByte(_Answering):
    """Nothing of the answer has been seen."""

    name = "before the first byte"
    gate = BEFORE_FIRST

    def _endless_line(self, world: World) -> str:
        return script("silent", key=world.key)

    def _wait_answering(self, world: World, run: Run) -> None:
        world.models.wait_open(1, key=world.key)

    def check(self, world: World, run: Run, mode: str) -> None:
        """A placeholder stands for the assistant."""
        super().check(world, run, mode)
        if mode in CUTTING:
            by_whom = ": redirect" if mode == "redirect" else " by the user"
            assert run.transcript()[1]["content"] == f"[stopped{by_whom} before any text]"


class Streaming(_Answering):
    """Text comes. Before it, the model has thought aloud, which no request may say."""

    name = "streaming"
    gate = AFTER_TEXT

    def _endless_line(self, world: World) -> str:
        thinking = {} if world.provider == "anthropic" else {"reasoning": 2}
        return script("trickle", key=world.key, **thinking, **ENDLESS)

    def _wait_answering(self, world: World, run: Run) -> None:
        run.wait_event("text", text="t2 ")

    def check(self, world: World, run: Run, mode: str) -> None:
        """What was seen of the answer stays, word for word, and is what the next request says."""
        super().check(world, run, mode)
        if mode not in CUTTING:
            return
        last = of_type(run, "message_delivered")[-1]["seq"]
        shown = "".join(event["text"] for event in of_type(run, "text") if event["seq"] < last)
        assert shown.startswith("t1 t2 ")
        assert run.transcript()[1]["content"] == shown
        assert "r1 " not in str([call.messages for call in world.models.calls(key=world.key)])
        if world.provider != "anthropic":
            assert of_type(run, "reasoning") != []


class ToolRunning(Moment):
    """A tool of the model works."""

    name = "tool running"
    providers = ("de2generator", "openai", "anthropic")
    expected: ClassVar = {
        "queue": Expected("queued", FOLLOWS, "UATAU", 3),
        "steer": Expected("steered", GOES_IN, "UATU", 2),
        "redirect": Expected("steered", GOES_IN, "UATU", 2),
        "interrupt": Expected("interrupted", REPLACES, "UATU", 2),
    }

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        at = stages[world.key]
        run = world.api.start(calls_line(world.key, ("until_told", {"stage": world.key})))
        at.wait_begun()
        yield run
        at.go.set()


class QuestionOpen(Moment):
    """A tool has asked the user. A message is no answer."""

    name = "question open"
    expected = ToolRunning.expected

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        run = world.api.start(ask_line(world.key, "Which colour?"))
        question = wait_question(run)
        assert run.state == "awaiting_answer"
        yield run
        if mode != "interrupt":
            assert run.state == "awaiting_answer"
            answer(run, question, "blue")

    def check(self, world: World, run: Run, mode: str) -> None:
        """An interrupt withdraws the question; else it was answered, and by its answer alone."""
        (question,) = interrupts(run)
        assert question["status"] == ("cancelled" if mode == "interrupt" else "answered")
        assert question.get("answer") == (None if mode == "interrupt" else "blue")


class SubAgentRunning(Moment):
    """A sub-agent answers: what was handed on is not interrupted, and the one who handed it on is told afterwards."""

    name = "sub-agent running"
    expected: ClassVar = {
        "queue": Expected("queued", FOLLOWS, "UATAU", 4),
        "steer": Expected("steered", GOES_IN, "UATU", 3),
        "redirect": Expected("steered", GOES_IN, "UATU", 3),
        "interrupt": Expected("queued", FOLLOWS, "UATAU", 4),
    }

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        with gate(AFTER_TEXT) as answering:  # the first text of all is the sub-agent's
            sub = sub_goal("sub", f"sub\n{say_done(world.key)}")
            run = world.api.start(delegate_line(world.key, sub, interval_ms=0))
            answering.wait_reached()
            yield run

    def check(self, world: World, run: Run, mode: str) -> None:
        """The sub-agent came to its end undisturbed, and has heard nothing."""
        (asked,) = [call for call in world.models.calls(key=world.key) if call.last_user_text.startswith("sub\n")]
        assert asked.close_reason == "finished"
        assert [each["role"] for each in asked.messages if each["role"] != "system"] == ["user"]


class Compacting(Moment):
    """The history is compacted, in a turn of its own, which is not disturbed."""

    name = "compacting"
    is_plain = False
    expected: ClassVar = {
        "queue": Expected("queued", FOLLOWS, "UAUAUAU", 3),
        "steer": Expected("steered", FOLLOWS, "UAUAUAU", 3),
        "redirect": Expected("steered", FOLLOWS, "UAUAUAU", 3),
        "interrupt": Expected("queued", FOLLOWS, "UAUAUAU", 3),
    }

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        run = start_talk(world.api, world.key)
        with gate("compaction.before_commit") as committing:
            run.first_turn = ask_compact(run)["turn_id"]
            committing.wait_reached()
            yield run

    def check(self, world: World, run: Run, mode: str) -> None:
        """It came into force."""
        (event,) = of_type(run, "compaction")
        assert event["messages"] > 0


class Stopping(Moment):
    """A stop of the turn is being carried out: whatever comes starts the next one."""

    name = "stopping"
    expected: ClassVar = _same(Expected("queued", FOLLOWS, "UAU", 2, end="turn_cancelled"))

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        run = world.api.start(script("trickle", key=world.key, **ENDLESS))
        run.wait_event("text", text="t2 ")
        with gate("turn.before_finish") as finishing:
            run.cancel(reason="before the message")
            finishing.wait_reached()
            assert run.state == "stopping"
            yield run

    def check(self, world: World, run: Run, mode: str) -> None:
        """It is the first stop that ended the turn."""
        assert end_of(run, run.first_turn)["reason"] == "before the message"
        check_cut(world)


class Ending(Moment):
    """The turn has finished, and its end is not recorded yet: too late to go in, and for a stop."""

    name = "just ending"
    expected: ClassVar = {
        "queue": Expected("queued", FOLLOWS, "UAU", 2),
        "steer": Expected("steered", FOLLOWS, "UAU", 2),
        "redirect": Expected("steered", FOLLOWS, "UAU", 2),
        "interrupt": Expected("started", STARTS, "UAU", 2),
    }

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`. An interrupt finds nothing to stop, and waits for the turn's end."""
        with gate("engine.before_final_write") as ending:
            gates.installed["talking.stopped"] = ending.open
            run = world.api.start(say_done(world.key))
            ending.wait_reached()
            yield run
            gates.installed.pop("talking.stopped")


class Ended(Moment):
    """The turn's end is recorded, and its thread is still there."""

    name = "just ended"
    expected: ClassVar = _same(Expected("started", STARTS, "UAU", 2))

    @contextmanager
    def held(self, world: World, mode: str) -> Iterator[Run]:
        """See :class:`Moment`."""
        with _held_at(world, "engine.after_final_write") as run:
            yield run


def check_cut(world: World) -> None:
    """The model server was told to end its first answer, or left alone with it, and has said nothing since."""
    call = world.models.wait_open(0, key=world.key)[0]
    assert call.close_reason == ("cancelled" if world.provider == "de2generator" else "client_gone")
    assert (call.asked_to_cancel_at is not None) == (world.provider == "de2generator")
    assert call.tokens_after_stop <= 1
    assert call.closed_at is not None
    assert call.tokens_after(call.closed_at) == 0


MOMENTS: tuple[Moment, ...] = (
    Parked(), NotBegun(), Planning(), BeforeFirstByte(), Streaming(), ToolRunning(), QuestionOpen(), SubAgentRunning(),
    Compacting(), Stopping(), Ending(), Ended(),
)  # fmt: skip


def fields_of_message(moment: Moment, key: str, mode: str) -> str:
    """A message that a strict model server takes, and that is told apart from all others."""
    asked = f"now this, to {mode}"
    if moment.planning == "auto":
        goals: list[dict[str, Any]] = [{"id": "two", "title": "two", "prompt": f"two\n{say_done(key)}"}]
        return f"{asked}\n{script('plan', plan=goals, key=key)}\n{say_done(key)}"
    return f"{asked}\n{script('strict', key=key)}"
