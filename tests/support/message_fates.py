"""What became of a message, read in every place that tells it: they must agree, whatever happened."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.support.api_client import Run
from tests.support.five_checks import TURN_ENDS, Event, Message
from tests.support.model_server import ServedCall
from tests.support.plans import all_events

#: Type of event -> the fate that it tells.
FATES = {"message_delivered": "delivered", "message_returned": "returned", "message_withdrawn": "withdrawn"}


@dataclass(frozen=True)
class Fate:
    """``position`` 0: it started the turn; 1 is the first that went into it while it was at work."""

    state: str
    turn_id: str | None = None
    position: int | None = None


def message_of(run: Run, message_id: str) -> dict[str, Any]:
    """``GET …/inbox/{message_id}``."""
    return run.api.get(f"{run.path}/inbox/{message_id}")  # type: ignore[no-any-return]


def fate_of(run: Run, message_id: str) -> Fate:
    """The one fate of a message of a run that waits or is over: row, log, inbox and transcript agree about it."""
    view = message_of(run, message_id)
    told = [event for event in all_events(run) if event.get("message_id") == message_id and event["type"] in FATES]
    assert len(told) == 1, f"not one fate: {view}, {told}"
    (event,) = told
    assert (FATES[event["type"]], view["settled_at"] is not None) == (view["state"], True), (event, view)
    assert message_id not in [each["message_id"] for each in run.inbox()]
    fate = Fate(view["state"], view["turn_id"], view["position"])
    if fate.state != "delivered":
        assert (event["text"], fate.turn_id, fate.position) == (view["text"], None, None)
    else:
        assert (event["turn_id"], event["position"]) == (fate.turn_id, fate.position)
        if fate.position:
            assert (event["text"], event["mode"]) == (view["text"], view["mode"])
    _check_said(run, view)
    return fate


def _check_said(run: Run, view: dict[str, Any]) -> None:
    """In the transcript it stands once, among its turn's messages of the user in order, or not at all."""
    said = [each for each in run.transcript() if each["role"] == "user"]
    found = [each for each in said if view["text"] in each["content"].split("\n\n")]
    if view["state"] != "delivered":
        assert found == [], "what was not delivered is not in the conversation"
        return
    assert [each["turn_id"] for each in found] == [view["turn_id"]], (view, said)
    in_turn = [text for each in said if each["turn_id"] == view["turn_id"] for text in each["content"].split("\n\n")]
    assert in_turn.index(view["text"]) == view["position"], (view, in_turn)


def wait_settled(run: Run, message_id: str) -> None:
    """Until the message is delivered and its turn has ended, and the run waits or is over."""
    delivered = run.wait_event("message_delivered", message_id=message_id)
    run.events(lambda event: event["type"] in TURN_ENDS and event["turn_id"] == delivered["turn_id"])
    run.wait_parked()


def end_of(run: Run, turn_id: str) -> Event:
    """The terminal event of a turn of a run that waits or is over."""
    (end,) = [event for event in all_events(run) if event["type"] in TURN_ENDS and event["turn_id"] == turn_id]
    return end


def text_of_turn(run: Run, turn_id: str, before: int | None = None) -> str:
    """What was shown of a turn's text; ``before``: up to the event with that number."""
    events = [event for event in all_events(run) if event["type"] == "text" and event["turn_id"] == turn_id]
    return "".join(event["text"] for event in events if before is None or event["seq"] < before)


def shape(messages: list[Message]) -> str:
    """The roles of messages but the system's, a letter each: ``UATU``."""
    return "".join(each["role"][0].upper() for each in messages if each["role"] != "system")


def bare(messages: list[Message]) -> list[Message]:
    """What of messages is said to a provider, without the system's; the arguments of calls as values."""
    return [
        {
            "role": each["role"], "content": each["content"] or "", "result_of": each.get("tool_call_id"),
            "calls": [
                (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in each.get("tool_calls") or ()
            ],
        }
        for each in messages if each["role"] != "system"
    ]  # fmt: skip


def first_with(calls: list[ServedCall], text: str) -> ServedCall:
    """The first request in which the user says this; there it is the last word, and no request says it twice."""
    for call in calls:
        said = [each["content"] for each in call.messages if each["role"] == "user"]
        assert sum(content.split("\n\n").count(text) for content in said) <= 1, said
    found = next(call for call in calls if any(text in str(each["content"]) for each in call.messages))
    last = found.messages[-1]
    assert (last["role"], text in last["content"].split("\n\n")) == ("user", True), found.messages
    return found
