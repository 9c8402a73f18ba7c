"""The messages of one turn without a server: two goals, and a writer that does what the test says."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from core.agent.rounds import Rounds
from core.call import Outcome
from core.cancellation import Level
from core.errors import ServerError
from core.plan.goal import Goal
from core.provider.model_call import ModelCall
from core.session.delivery import Letter
from core.session.mail import Mail
from core.session.said_log import _take_message
from tests.support.race_kit import add_goal, bare_plan


class Wire:
    """Stands for a socket, and for a server that cannot be asked."""

    can_be_asked = False

    def shut(self) -> None:
        """Hang up."""

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """It cannot."""
        raise AssertionError


class Bench:
    """A turn of two goals, ``a`` and ``b``, whose writer does what the test says; keeps the log that it would write."""

    def __init__(self) -> None:
        plan = bare_plan()
        self.goals: dict[str, Goal] = {name: add_goal(plan, name) for name in "ab"}
        for goal in self.goals.values():
            goal.scope = plan.plan_goal.scope or plan.scope.open(Level.GOAL, goal.id)
        self.calls: dict[str, ModelCall] = {}
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        #: What the writer makes of the next deliveries, first to last; with nothing here they are durable at once.
        self.refusals: list[ServerError | None] = []
        #: The writer is slow: its answers, not given yet.
        self.pending: list[Future[None]] | None = None
        self.mail = Mail(SimpleNamespace(  # type: ignore[arg-type]
            start=SimpleNamespace(run_id="r", turn_id="t"), record=self._record, cancel_timeout_s=0.1,
        ))  # fmt: skip
        self._stack = ExitStack()
        self._numbers = 0

    def _record(self, decide: Any) -> Future[None]:
        future: Future[None] = Future()
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            future.set_exception(refusal)
            return future
        decide(self)
        if self.pending is None:
            future.set_result(None)
        else:
            self.pending.append(future)
        return future

    def deliver(self, letter: Letter, places: list[dict[str, Any]]) -> None:
        """What the writer writes."""
        about = {"message_id": letter.id, "text": letter.text, "mode": letter.mode, "goals": places}
        self.log.append(("message_delivered", "", about))

    def join(self, name: str) -> list[str]:
        """The goal begins; the texts that it finds in its history."""
        return [each.text for each in self._stack.enter_context(self.mail.joined(self.goals[name]))]

    def send(self, mode: str, goal: str | None = None) -> bool:
        """A message arrives; whether it cut something off."""
        self._numbers += 1
        return self.mail.add(Letter(f"m{self._numbers}", f"text {self._numbers}", mode, goal))

    def begin(self, name: str) -> None:
        """The goal asks; or its request was cut off before it left."""
        goal = self.goals[name]
        assert goal.scope is not None
        self.calls[name] = ModelCall(goal.scope.open(Level.CALL, "call"), name, Wire(), Wire(), 0.1)
        self.mail.begin_request(goal, self.calls[name])

    def say(self, name: str, text: str) -> None:
        """A token arrives; dropped behind a cut."""
        if not self.calls[name].scope.is_stopped:
            self.goals[name].rounds.say(text)
            self.log.append(("text", name, {"text": text}))

    def end(self, name: str, outcome: Outcome) -> bool:
        """The request is over; whether it was cut off."""
        call = self.calls.pop(name)
        call.settle(outcome, "")
        is_cut = call.scope.finish() is not None
        self.mail.end_request(self.goals[name], is_cut)
        if outcome is Outcome.FAILED and not is_cut:
            self.log.append(("retry", name, {}))
        return is_cut

    def use_tool(self, name: str) -> None:
        """The answer called one."""
        call_id = f"c{len(self.log)}"
        self.goals[name].rounds.call(call_id, "look", "{}")
        self.goals[name].rounds.answer(call_id, "done", is_error=False)
        self.log.append(("tool_call", name, {"name": "look", "arguments": "{}", "id": call_id}))
        self.log.append(("tool_result", name, {"content": "done", "is_error": False, "id": call_id}))

    def folded(self, name: str) -> list[dict[str, Any]]:
        """The rounds of a goal as a restart reads them."""
        rounds: dict[str, Rounds] = {}
        for kind, goal, data in self.log:
            if kind == "message_delivered":
                _take_message(data, [], rounds)
            else:
                rounds.setdefault(goal, Rounds()).take(kind, data.get("id"), data)
        return rounds.get(name, Rounds()).messages()

    def heard(self, name: str) -> list[str]:
        """What the goal's request has of the user."""
        asked = self.goals[name].rounds.messages_to_ask()
        return [each["content"] for each in asked if each["role"] == "user"]

    def close(self) -> list[str]:
        """The turn ends: the texts that went in."""
        told = [each.text for each in self.mail.close()]
        self._stack.close()
        return told
