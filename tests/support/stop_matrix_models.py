"""Rows of the stop matrix: calls of a model by each provider, and the waits and second attempts around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from tests.support.api_client import Run
from tests.support.delegating import ENDLESS
from tests.support.model_server import ServedCall, script
from tests.support.servers import gate
from tests.support.stop_matrix import AFTER_LAST_BYTE, BOUND_S, Expected, Kind, Phase, Stop, World

EARLY, MID, LATE, DEAF = Phase.EARLY, Phase.MID, Phase.LATE, Phase.DEAF

_UNSENT = Expected(("model_call aborted: socket shut",), model_calls=0)
_UNBEGUN = Expected(model_calls=0)
_SHUT = Expected(("model_call aborted: socket shut",))
_AGREED = Expected(("model_call cancelled: gateway answered *",))
_DONE = Expected(("model_call already_done: it had finished",))


class _ModelCall(Kind):
    """A model that streams its answer, to a server that can be asked to cancel it."""

    early_gate = "model_call.before_sent"
    late_gate = AFTER_LAST_BYTE
    expected: ClassVar = {EARLY: _UNSENT, MID: _AGREED, LATE: _DONE, DEAF: _SHUT}
    #: How the model server's log says that a call in the middle of its answer ended; a deaf one ends as any that is cut.
    ends_by = "cancelled"

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        if phase is MID:
            return script("trickle", key=world.key, **ENDLESS)
        if phase is DEAF:
            return script("deaf", key=world.key, **ENDLESS)
        return script("trickle", tokens=2, interval_ms=0, key=world.key)

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        world.models.wait_tokens(2, key=world.key)
        run.wait_event("text")

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        calls = world.models.wait_open(0, key=world.key)
        if phase is not EARLY:
            self._check_call(world, calls[-1], phase)
        self._check_text(run, phase)

    def _check_call(self, world: World, call: ServedCall, phase: Phase) -> None:
        ends_by = {MID: self.ends_by, LATE: "finished", DEAF: "client_gone"}
        assert call.close_reason == ends_by[phase]
        is_asked = self.ends_by == "cancelled" and phase in (MID, DEAF)
        assert (call.asked_to_cancel_at is not None) == is_asked
        assert call.closed_at is not None
        assert phase is LATE or call.closed_at - world.stopped_at < BOUND_S
        if phase is MID and is_asked:
            assert call.tokens_after_stop <= 1

    def _check_text(self, run: Run, phase: Phase) -> None:
        said = run.transcript()[-1]
        assert (said["role"], said["stopped"]) == ("assistant", True)
        text = {EARLY: "[stopped", MID: "t1 t2 ", LATE: "t1 t2 ", DEAF: "t1 t2 "}[phase]
        assert said["content"].startswith(text)
        assert phase is not LATE or said["content"] == text


class De2Generator(_ModelCall):
    name = "de2generator"


class OpenAi(_ModelCall):
    name = provider = "openai"
    expected: ClassVar = {EARLY: _UNSENT, MID: _SHUT, LATE: _DONE}
    ends_by = "client_gone"


class Anthropic(_ModelCall):
    name = provider = "anthropic"
    expected: ClassVar = {EARLY: _UNSENT, MID: _SHUT, LATE: _DONE}
    ends_by = "client_gone"


class _WithoutText(_ModelCall):
    """Nothing of the answer is there while it runs. Early it is held before there is a call at all."""

    early_gate = "agent.before_request"

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        world.models.wait_open(1, key=world.key)

    def _check_text(self, run: Run, phase: Phase) -> None:
        said = run.transcript()[-1]
        assert said["content"].startswith("t1 t2 " if phase is LATE else "[stopped")


class WholeReply(_WithoutText):
    """The server ignores that a stream was asked for, and sends one whole reply."""

    name = "whole reply"
    expected: ClassVar = {EARLY: _UNBEGUN, MID: _AGREED, LATE: _DONE, DEAF: _SHUT}

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        more = {"cancel": "deaf"} if phase is DEAF else {}
        delay_ms = 60_000 if phase in (MID, DEAF) else 0
        return script("nonstream", delay_ms=delay_ms, tokens=2, key=world.key, **more)


class SilentServer(_WithoutText):
    """The server takes the request and says nothing."""

    name = "silent server"
    expected: ClassVar = {EARLY: _UNBEGUN, MID: _AGREED, DEAF: _SHUT}

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        return script("silent", key=world.key, **({"cancel": "deaf"} if phase is DEAF else {}))


class RetryWait(Kind):
    """The wait that a busy server asked for. Late: it is over, and the next attempt has not begun."""

    name = "retry wait"
    early_gate = "agent.after_failure"
    expected: ClassVar = {EARLY: Expected(), MID: Expected(("wait cancelled: woken",)), LATE: Expected()}

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        return script("busy", retry_after_s=0 if phase is LATE else 60, key=world.key)

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        assert run.wait_event("retry")["wait_ms"] == 60_000

    @contextmanager
    def held(self, world: World, phase: Phase, **fields: Any) -> Iterator[Run]:
        """See :class:`Kind`. Late it stands where an attempt begins, for the second time."""
        if phase is not LATE:
            with super().held(world, phase, **fields) as run:
                yield run
            return
        with gate("agent.after_failure") as failed:
            run = self._start(world, phase, **fields)
            failed.wait_reached()
            with gate("agent.before_request") as second:
                failed.open()
                second.wait_reached()
                yield run

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        (call,) = world.models.wait_open(0, key=world.key)
        assert (call.status, call.close_reason) == (429, "finished")
        retries = [event for event in run.events(_parks) if event["type"] == "retry"]
        assert len(retries) == (0 if phase is EARLY else 1)


class SecondModel(_ModelCall):
    """The first model has failed, and the fallback model answers. Early: it has not been asked."""

    name = "second model"
    agent = "careful"
    early_gate = "agent.after_failure"
    expected: ClassVar = {
        EARLY: Expected(),
        MID: replace(_AGREED, model_calls=2),
        LATE: replace(_DONE, model_calls=2),
        DEAF: replace(_SHUT, model_calls=2),
    }

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        first = script("error", status=400, model="first", key=world.key)
        return f"{first}\n{super().line(world, phase)} model=second"

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        super().check_world(world, run, phase, stop)
        asked = [call.model for call in world.models.calls(key=world.key)]
        assert asked == (["first"] if phase is EARLY else ["first", "second"])


def _parks(event: dict[str, Any]) -> bool:
    return event["type"] in ("awaiting_input", "run_cancelled")


MODEL_KINDS: tuple[Kind, ...] = (
    De2Generator(), OpenAi(), Anthropic(), WholeReply(), SilentServer(), RetryWait(), SecondModel()
)  # fmt: skip
