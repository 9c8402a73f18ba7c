"""What a turn must have said, made of its log by rules that are written out here once more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What one leaf said and did: its rounds as messages, and its result if it was completed."""

    rounds: list[Row]
    result: str | None

    @property
    def text(self) -> str:
        """The result, or everything that was said as far as it came."""
        words = [message["content"] for message in self.rounds if message["role"] == "assistant"]
        return "\n\n".join(each for each in words if each) if self.result is None else self.result


SaidByGoal = dict[str, Said]


def said_by(log: list[Row], before: SaidByGoal) -> SaidByGoal:
    """By each leaf, in plan order. ``before`` is of the turn that this one resumes: it stands for who said nothing."""
    leaves = [goal["id"] for goal in plan_of(log) if not goal["goals"]]
    found: SaidByGoal = {}
    for leaf in leaves:
        mine = [event for event in log if event["goal_id"] == leaf]
        done = [event["data"] for event in mine if event["data"].get("status") == "COMPLETED"]
        has_begun = any(event["type"] in ("text", "tool_call") for event in mine)
        own = Said(_rounds_of(mine), done[0].get("result", "") if done else None)
        found[leaf] = own if has_begun else before.get(leaf, own)
    return found or before


def check_said(turn: Row, log: list[Row], said: SaidByGoal, messages_before: list[Row] | None) -> None:
    """The end of the turn tells it. ``messages_before`` are those of the turn that it resumes."""
    messages = log[-1]["data"]["messages"]
    if not plan_of(log) and messages_before is not None:
        assert _bare(messages) == _bare(messages_before), "it had no plan yet, and lost what was there before"
    else:
        _check_messages(_bare(messages), list(said.values()) if plan_of(log) else [])
    statuses = {event["goal_id"]: event["data"]["status"] for event in log if event["type"] == "goal_status"}
    is_answered = bool(statuses) and set(statuses.values()) == {"COMPLETED"}
    marked = [message for message in messages if "stopped" in message or "failed" in message]
    # A stop that only met the making of a title leaves the answer as it is.
    assert len(marked) == (turn["state"] != "completed") or (is_answered and not marked)


def _check_messages(messages: list[Row], said: list[Said]) -> None:
    if len(said) == 1 and any(message.get("tool_calls") for message in said[0].rounds):
        assert messages == said[0].rounds
        return
    content = "\n\n".join(each.text for each in said if each.text)
    (message,) = messages
    assert message["role"] == "assistant"
    if content.strip():
        assert message["content"] == content
    else:
        assert message["content"].endswith(" before any text]")


def _bare(messages: list[Row]) -> list[Row]:
    marks = ("stopped", "cause", "failed")
    return [{name: message[name] for name in message if name not in marks} for message in messages]


def plan_of(log: list[Row]) -> list[Row]:
    """The goals of the newest plan, parents first, in plan order, each with ``path``: itself and those around it."""
    plans = [event["data"]["goals"] for event in log if event["type"] == "plan_updated"]
    found: list[Row] = []
    waiting: list[tuple[Row, tuple[str, ...]]] = [(goal, ()) for goal in reversed(plans[-1])] if plans else []
    while waiting:
        goal, around = waiting.pop()
        path = (*around, goal["id"])
        found.append({**goal, "path": path})
        waiting.extend((child, path) for child in reversed(goal["goals"]))
    return found


def _rounds_of(log: list[Row]) -> list[Row]:
    """Texts, calls and results of one goal as the messages that they make."""
    made: list[Row] = []
    results = {event["call_id"]: event["data"] for event in log if event["type"] == "tool_result"}
    was_result = False
    for event in log:
        if event["type"] == "text":
            if not made or made[-1].get("tool_calls"):
                made.append({"role": "assistant", "content": ""})
            made[-1]["content"] += event["data"]["text"]
        elif event["type"] == "tool_call":
            if not made or was_result:
                made.append({"role": "assistant", "content": ""})
            made[-1].setdefault("tool_calls", []).append(event)
        was_result = event["type"] == "tool_result" or (was_result and event["type"] not in ("text", "tool_call"))
    said: list[Row] = []
    for message in made:
        calls = message.pop("tool_calls", [])
        if not message["content"].strip():
            message["content"] = ""
        if calls:
            message["tool_calls"] = [
                {"id": call["call_id"], "type": "function",
                 "function": {"name": call["data"]["name"], "arguments": _an_object(call["data"]["arguments"])}}
                for call in calls
            ]  # fmt: skip
        if calls or message["content"]:
            said.append(message)
        for call in calls:
            result = results.get(call["call_id"], {"content": None, "is_error": False})
            tool = {"role": "tool", "tool_call_id": call["call_id"], "content": result["content"]}
            said.append(tool | ({"is_error": True} if result["is_error"] else {}))
    return said


def _an_object(arguments: str) -> str:
    good = arguments.startswith("{") or not arguments  # of those that are drawn
    return (arguments or "{}") if good else json.dumps({"invalid_arguments": arguments}, ensure_ascii=False)
