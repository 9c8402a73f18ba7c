"""The phases of a turn in which a stop may come, each of them forced: a run that stands in it, and cannot leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.api_client import Api, Run
from tests.support.compacting import talk
from tests.support.delegating import ENDLESS, delegate_line, sub_goal
from tests.support.five_checks import processes_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan
from tests.support.servers import gate, wait_until

#: An agent of the server that has a fallback model.
CAREFUL = {"name": "careful", "model": "first", "fallback_model": "second"}
#: A wait longer than any test.
_LONG_S = 60


@dataclass(frozen=True)
class Scene:
    """Where a phase is played: a user of a server in this process, and the gateway that answers."""

    api: Api
    models: ModelServer
    key: str

    def line(self, name: str, **options: Any) -> str:
        """A script line of this test."""
        return script(name, key=self.key, **options)


Enter = Callable[..., AbstractContextManager[Run]]


@dataclass(frozen=True)
class Phase:
    """One row of the table. ``enter(scene, **fields)`` starts a run (with these fields) and holds it in the phase."""

    name: str
    enter: Enter
    #: The run's state in it.
    state: str
    #: A kind that must be in the final receipt; None if a stop finds nothing there.
    found: str | None
    #: Model calls made when it is reached; after the stop there must be no more.
    calls: int

    def __str__(self) -> str:
        return self.name


@contextmanager
def _queued(scene: Scene, **fields: Any) -> Iterator[Run]:
    with gate("engine.claimed") as claimed:
        run = scene.api.start(scene.line("silent"), **fields)
        claimed.wait_reached()
        yield run


@contextmanager
def _planning(scene: Scene, **fields: Any) -> Iterator[Run]:
    run = scene.api.start(scene.line("silent", on="plan"), **{"planning": "auto", **fields})
    scene.models.wait_calls(1, key=scene.key)
    yield run


@contextmanager
def _before_the_first_byte(scene: Scene, **fields: Any) -> Iterator[Run]:
    run = scene.api.start(scene.line("silent"), **fields)
    scene.models.wait_calls(1, key=scene.key)
    yield run


@contextmanager
def _streaming(scene: Scene, **fields: Any) -> Iterator[Run]:
    run = scene.api.start(scene.line("trickle", tokens=4000, interval_ms=20), **fields)
    run.wait_event("text")
    yield run


@contextmanager
def _busy_wait(scene: Scene, **fields: Any) -> Iterator[Run]:
    run = scene.api.start(scene.line("busy", retry_after_s=_LONG_S), **fields)
    assert run.wait_event("retry")["wait_ms"] == _LONG_S * 1000
    yield run


@contextmanager
def _backoff(scene: Scene, **fields: Any) -> Iterator[Run]:
    """The server's own wait. The retry policy of the server must be a patient one."""
    run = scene.api.start(scene.line("error", status=503), **fields)
    assert run.wait_event("retry")["wait_ms"] >= _LONG_S * 500
    yield run


@contextmanager
def _falling_back(scene: Scene, **fields: Any) -> Iterator[Run]:
    """The first model has failed, and the second is not asked yet."""
    with gate("agent.after_failure") as failed:
        run = scene.api.start(_of_two_models(scene), **fields, agent=CAREFUL["name"])
        failed.wait_reached()
        yield run


@contextmanager
def _fallback(scene: Scene, **fields: Any) -> Iterator[Run]:
    run = scene.api.start(_of_two_models(scene), **fields, agent=CAREFUL["name"])
    scene.models.wait_calls(2, key=scene.key)
    yield run


def _of_two_models(scene: Scene) -> str:
    """The first refuses, the second says nothing."""
    return "\n".join(
        (scene.line("error", status=404, model=CAREFUL["model"]), scene.line("silent", model=CAREFUL["fallback_model"]))
    )


@contextmanager
def _tools_running(scene: Scene, **fields: Any) -> Iterator[Run]:
    run = scene.api.start(scene.line("toolcall", arguments={"command": "echo begun; sleep 600 & sleep 600"}), **fields)
    output = run.wait_event("tool_output", text="begun\n")
    call = run.wait_event("tool_call", call_id=output["call_id"])
    # Else the check that none is alive would see none in any case.
    wait_until(lambda: len(processes_of([call])) >= 3, "the command's processes")
    yield run


@contextmanager
def _sub_agent_running(scene: Scene, **fields: Any) -> Iterator[Run]:
    inside = sub_goal("inside", scene.line("trickle", **ENDLESS))
    run = scene.api.start(delegate_line(scene.key, inside), **fields)
    assert run.wait_event("text")["goal_id"] != "answer"
    yield run


@contextmanager
def _between_two_steps(scene: Scene, **fields: Any) -> Iterator[Run]:
    with gate("tool_loop.between_steps") as between:
        run = scene.api.start(scene.line("toolcall", arguments={"command": "echo done"}), **fields)
        between.wait_reached()
        yield run


@contextmanager
def _between_two_goals(scene: Scene, **fields: Any) -> Iterator[Run]:
    with gate("agent.before_request") as first:
        plan = (goal("first", say_done(scene.key)), goal("second", say_done(scene.key), "first"))
        run = start_plan(scene.api, *plan, **fields)
        first.wait_reached()
        with gate("scheduler.before_goal_starts") as second:
            first.open()
            second.wait_reached()
            yield run


@contextmanager
def _question_open(scene: Scene, **fields: Any) -> Iterator[Run]:
    run = scene.api.start(script("toolcall", name="ask_user", arguments={"question": "which?"}, key=scene.key), **fields)
    run.wait_event("interruption_pending")
    yield run


@contextmanager
def _compacting(scene: Scene, **fields: Any) -> Iterator[Run]:
    # Under another key: the next turn has its history summed up once more.
    history = talk(f"{scene.key}-history", 12)
    with gate("compaction.before_commit") as committing:
        run = scene.api.start(scene.line("trickle", **ENDLESS), messages=history, **fields)
        committing.wait_reached()
        yield run


PHASES = (
    Phase("queued", _queued, "queued", None, 0),
    Phase("planning", _planning, "running", "model_call", 1),
    Phase("before the first byte", _before_the_first_byte, "running", "model_call", 1),
    Phase("streaming", _streaming, "running", "model_call", 1),
    Phase("429 wait", _busy_wait, "running", "wait", 1),
    Phase("backoff", _backoff, "running", "wait", 1),
    Phase("falling back", _falling_back, "running", "goal", 1),
    Phase("fallback", _fallback, "running", "model_call", 2),
    Phase("tools running", _tools_running, "running", "tool", 1),
    Phase("question open", _question_open, "awaiting_answer", "question", 1),
    Phase("compacting", _compacting, "running", None, 0),
    Phase("sub-agent running", _sub_agent_running, "running", "sub_run", 2),
    Phase("between two steps", _between_two_steps, "running", "goal", 1),
    Phase("between two goals", _between_two_goals, "running", "goal", 1),
)
