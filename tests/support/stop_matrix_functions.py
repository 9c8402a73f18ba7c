"""Rows of the stop matrix: tools whose work is done inside the server, by a Python function or by sub-agents."""

from __future__ import annotations

import json
from typing import ClassVar

from tests.support.api_client import Run
from tests.support.delegating import ENDLESS, delegate_line, delegated, sub_goal
from tests.support.model_server import script
from tests.support.own_tools import LATE as LATE_WORDS
from tests.support.own_tools import stages
from tests.support.plans import say_done
from tests.support.python_tools import call_line
from tests.support.stop_matrix import STOPPED, Expected, Kind, Phase, Stop, World
from tests.support.stop_matrix_tools import UNBEGUN, call, done

EARLY, MID, LATE, DEAF = Phase.EARLY, Phase.MID, Phase.LATE, Phase.DEAF


class AskedFunction(Kind):
    """A Python function that takes the event of its call. Late it has returned without having seen a stop."""

    name = "function that is asked"
    tools = ("asked", "until_told")
    has_own_limit = True
    expected: ClassVar = {
        EARLY: UNBEGUN,
        MID: Expected(("tool cancelled: it ended when asked",), ("*half of it",)),
        LATE: done("*in peace"),
    }

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        stages[world.key].go.set()  # nobody holds ``until_told``
        return call(world, "until_told" if phase is LATE else "asked", {"stage": world.key})

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        stages[world.key].wait_begun()

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        at = stages[world.key]
        assert (at.begun.is_set(), at.ended.is_set()) == ((False, False) if phase is EARLY else (True, True))
        if phase is MID:
            assert at.cause is not None
            assert at.cause.word == stop.cause


class DeafFunction(Kind):
    """A Python function that takes nothing to listen to."""

    name = "function that is deaf"
    tools = ("deaf",)
    has_own_limit = True
    expected: ClassVar = {
        EARLY: UNBEGUN,
        LATE: done(f"*{LATE_WORDS}"),
        DEAF: Expected(("tool abandoned: did not end in time*",), (STOPPED,), abandoned=1),
    }

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        if phase is LATE:
            stages[world.key].go.set()
        return call(world, "deaf", {"stage": world.key})

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        stages[world.key].wait_begun()

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        at = stages[world.key]
        assert (at.begun.is_set(), at.ended.is_set()) == (phase is not EARLY, phase is LATE)

    def let_go(self, world: World, phase: Phase) -> None:
        """See :class:`Kind`."""
        at = stages[world.key]
        at.go.set()
        if phase is DEAF:
            at.wait_ended()


class Delegate(Kind):
    """A sub-agent at work for a tool call. The deaf one has called a function that does not listen."""

    name = "delegate"
    tools = ("delegate", "deaf")
    early_gate = "delegation.before_spawn"
    _STOPPED = "sub_run cancelled: its goals were stopped"
    expected: ClassVar = {
        EARLY: Expected(("sub_run not_started: never began",), (STOPPED,)),
        MID: Expected((_STOPPED, "model_call cancelled: gateway answered *", "goal cancelled: *"), ("*CANCELLED*",), 2),
        LATE: Expected(("sub_run already_done: it had finished",), ("*COMPLETED*",), 2),
        DEAF: Expected(
            (_STOPPED, "tool abandoned: did not end in time*", "goal cancelled: *"), ("*CANCELLED*", STOPPED), 2, 1
        ),
    }

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        prompts = {
            MID: script("trickle", key=world.sub_key, **ENDLESS),
            DEAF: call_line(world.sub_key, "deaf", arguments=[json.dumps({"stage": world.key}, separators=(",", ":"))]),
        }
        return delegate_line(world.key, sub_goal("inside", prompts.get(phase, say_done(world.sub_key))))

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        if phase is DEAF:
            stages[world.key].wait_begun()
        else:
            world.models.wait_tokens(2, key=world.sub_key)

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        ends = [call.close_reason for call in world.models.wait_open(0, key=world.sub_key)]
        assert ends == {EARLY: [], MID: ["cancelled"]}.get(phase, ["finished"])
        status = {EARLY: [], LATE: ["COMPLETED"]}.get(phase, ["CANCELLED"])
        assert [goal["status"] for goal in delegated(run).values()] == status
        assert not stages[world.key].ended.is_set()

    def let_go(self, world: World, phase: Phase) -> None:
        """See :class:`Kind`."""
        stages[world.key].go.set()
        if phase is DEAF:
            stages[world.key].wait_ended()


FUNCTION_KINDS: tuple[Kind, ...] = (AskedFunction(), DeafFunction(), Delegate())
