"""What the tests of compaction share."""

from __future__ import annotations

from typing import Any

from core.session.summary import INSTRUCTIONS
from tests.support.api_client import Api, Run
from tests.support.going_back import of_type, system_of
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import all_events

Message = dict[str, Any]

#: What the summary is, if a :func:`talk` has no other line in it.
SUMMARY = "t1 t2 t3"


def talk(key: str, exchanges: int, line: str | None = None) -> list[Message]:
    """A conversation to hand in: numbered questions and answers, every second one with a round of two tools.

    The stand-in plays the first script line in a summary's request: that is the ``line`` in the second question.
    """
    line = line or script("trickle", tokens=3, interval_ms=0, key=key)
    messages: list[Message] = []
    for number in range(exchanges):
        messages.append({"role": "user", "content": f"question {number}" + (f"\n{line}" if number else "")})
        if number % 2:
            ids = [f"call_{number}_{each}" for each in range(2)]
            calls = [
                {"id": each, "type": "function", "function": {"name": "look", "arguments": '{"at": "the sky"}'}}
                for each in ids
            ]
            messages.append({"role": "assistant", "content": f"looking {number}", "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": each, "content": f"found by {each}"} for each in ids]
        messages.append({"role": "assistant", "content": f"answer {number}"})
    return messages


def start_talk(api: Api, key: str, exchanges: int = 5, line: str | None = None, **fields: Any) -> Run:
    """A parked run with that conversation and one turn of its own behind it."""
    run = api.start(script("strict", key=key), messages=talk(key, exchanges, line), **fields)
    run.wait_parked()
    assert of_type(run, "turn_completed") != []
    return run


def ask_compact(run: Run, expect: int | None = None, **fields: Any) -> dict[str, Any]:
    """``POST …/compact``; the JSON of the answer."""
    status = expect or (200 if fields.get("undo") else 202)
    return run.api.post(f"{run.path}/compact", fields, expect=status)  # type: ignore[no-any-return]


def compacted(run: Run, **fields: Any) -> dict[str, Any]:
    """Compact, and wait for the end of that turn; its one ``compaction`` event."""
    turn_id = ask_compact(run, **fields)["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    (event,) = [each for each in compactions_of(run) if each.get("turn_id") == turn_id]
    return event


def compactions_of(run: Run) -> list[dict[str, Any]]:
    """The ``compaction`` events of a run that waits or is over."""
    return of_type(run, "compaction")


def events_of(run: Run, turn_id: str) -> list[dict[str, Any]]:
    """The events of one turn of a run that waits or is over."""
    return [event for event in all_events(run) if event.get("turn_id") == turn_id]


def summary_calls(models: ModelServer, key: str) -> list[ServedCall]:
    """The requests for a summary of this test."""
    return [call for call in models.calls(key=key) if INSTRUCTIONS in system_of(call)]


def ask_next(run: Run, models: ModelServer, key: str) -> ServedCall:
    """The request that the next message makes; the strict model server has taken it."""
    sent = run.say(script("strict", key=key))
    end = run.wait_event("turn_completed", turn_id=sent["turn_id"])
    assert end["messages"][-1]["content"] == "All messages are in order."
    run.wait_parked()
    return models.calls(key=key)[-1]
