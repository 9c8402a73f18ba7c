"""What the tests of rollback, resume and regenerate share."""

from __future__ import annotations

from typing import Any

from tests.support.api_client import Run
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import all_events, goal, start_plan

#: By what a reader of a request knows the stop note.
NOTE = "was stopped"


def go_back(run: Run, verb: str, expect: int | None = None, **fields: Any) -> dict[str, Any]:
    """``POST …/rollback``, ``…/resume`` or ``…/regenerate``; the JSON of the answer."""
    status = expect or (200 if verb == "rollback" else 202)
    return run.api.post(f"{run.path}/{verb}", fields, expect=status)  # type: ignore[no-any-return]


def of_type(run: Run, *kinds: str) -> list[dict[str, Any]]:
    """The events of these types of a run that waits or is over."""
    return [event for event in all_events(run) if event["type"] in kinds]


def texts_of(call: ServedCall) -> list[tuple[str, str]]:
    """Role and text of what a request said, without its system message."""
    return [(message["role"], message["content"]) for message in call.messages if message["role"] != "system"]


def system_of(call: ServedCall) -> str:
    """The text of a request's system message."""
    return "".join(str(message["content"]) for message in call.messages if message["role"] == "system")


def last_call(models: ModelServer, key: str) -> ServedCall:
    """The newest request of a test."""
    return models.calls(key=key)[-1]


class HalfDone:
    """A plan that is stopped, or lost, with one goal finished, one streaming, and two not started."""

    def __init__(self, key: str, tokens: int = 100) -> None:
        self.key = key
        self.lines = {
            "done": script("trickle", tokens=2, interval_ms=0, key=f"{key}-done"),
            "half": script("trickle", tokens=tokens, interval_ms=20, key=f"{key}-half"),
            "later": script("strict", key=f"{key}-later"),
            "last": script("strict", key=f"{key}-last"),
        }
        self.goals = (
            goal("done", self.lines["done"]),
            goal("half", self.lines["half"], "done"),
            goal("inner", None, "half", goals=[goal("later", self.lines["later"], "done")]),
            goal("last", self.lines["last"], "inner"),
        )
        #: The whole answer of the streaming goal.
        self.half = "".join(f"t{number} " for number in range(1, tokens + 1))

    def start(self, run_of: Any, **fields: Any) -> Run:
        """The run, once the second goal has said something."""
        run = start_plan(run_of, *self.goals, text="work on this", **fields)
        run.wait_event("text", goal_id="half")
        return run

    def check_whole(self, run: Run, models: ModelServer) -> None:
        """All is done, each goal but the interrupted one was asked for once, and the transcript tells it once."""
        goals = run.goals()
        assert {name: each["status"] for name, each in goals.items()} == dict.fromkeys(goals, "COMPLETED")
        assert goals.keys() == {"done", "half", "inner", "later", "last"}
        asked = {name: len(models.calls(key=f"{self.key}-{name}")) for name in self.lines}
        assert asked == {"done": 1, "half": 2, "later": 1, "last": 1}
        for name in ("half", "later"):
            assert "Result of “done”:\nt1 t2 " in system_of(last_call(models, f"{self.key}-{name}"))
        whole = ["t1 t2 ", self.half, "All messages are in order.", "All messages are in order."]
        said = run.transcript()
        assert [(each["role"], each["content"]) for each in said] == [
            ("user", "work on this"), ("assistant", "\n\n".join(whole))
        ]  # fmt: skip
        assert {each["turn_id"] for each in said} == {run.view()["turn_id"]}
        assert not any(each.get("stopped") or each.get("failed") for each in said)
