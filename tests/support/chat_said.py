"""What a turn must have said, made of its log by rules that are written out here once more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

Row = dict[str, Any]

#: What stands between two messages of the user when nothing was said in between: the model was cut off, or was not asked.
CUT: Final = "[stopped: redirect before any text]"
UNANSWERED: Final = "[not answered yet]"


@dataclass(frozen=True)
class Said:
    """What one leaf said and did: its rounds as messages, and its result if it was completed."""

    rounds: list[Row]
    result: str | None
    #: What it said, round by round.
    words: list[str]
    #: Ids of the messages of the user that stand among its rounds.
    told: list[str]

    @property
    def text(self) -> str:
        """The result, or everything that was said as far as it came."""
        return "\n\n".join(each for each in self.words if each) if self.result is None else self.result

    @property
    def is_a_thread(self) -> bool:
        """Whether its rounds are more than its text."""
        return any(message["role"] == "user" or message.get("tool_calls") for message in self.rounds)


SaidByGoal = dict[str, Said]


def said_by(log: list[Row], before: SaidByGoal) -> SaidByGoal:
    """By each leaf, in plan order. ``before`` is of the turn that this one resumes: it stands for who said nothing."""
    leaves = [goal["id"] for goal in plan_of(log) if not goal["goals"]]
    found: SaidByGoal = {}
    for leaf in leaves:
        mine = [event for event in log if event["goal_id"] == leaf or _place_of(event, leaf)]
        done = [event["data"] for event in mine if event["data"].get("status") == "COMPLETED"]
        has_begun = any(event["type"] in ("text", "tool_call") for event in mine)
        own = _said_of(mine, leaf, done[0].get("result", "") if done else None)
        found[leaf] = own if has_begun else before.get(leaf, own)
    return found or before


def told_in(log: list[Row]) -> list[Row]:
    """The messages that went into the turn while it was at work, as they were delivered."""
    return [event["data"] for event in log if event["type"] == "message_delivered" and event["data"]["position"]]


def check_said(
    turn: Row, log: list[Row], said: SaidByGoal, told: list[Row], messages_before: list[Row] | None
) -> None:
    """The end of the turn tells it. ``told`` is what the user said in it, and in those that it resumes;
    ``messages_before`` are those of the turn that it resumes.
    """
    messages = log[-1]["data"]["messages"]
    if not plan_of(log) and messages_before is not None and not told_in(log):
        assert _bare(messages) == _bare(messages_before), "it had no plan yet, and lost what was there before"
    else:
        _check_messages(_bare(messages), list(said.values()), told)
    statuses = {event["goal_id"]: event["data"]["status"] for event in log if event["type"] == "goal_status"}
    is_answered = bool(statuses) and set(statuses.values()) == {"COMPLETED"}
    marked = [message for message in messages if "stopped" in message or "failed" in message]
    # A stop that only met the making of a title leaves the answer as it is.
    assert len(marked) == (turn["state"] != "completed") or (is_answered and not marked)


def _check_messages(messages: list[Row], said: list[Said], told: list[Row]) -> None:
    single = said[0] if len(said) == 1 else None
    before = [each for each in told if single is None or each["message_id"] not in single.told]
    if before:
        placeholder, asked, *messages = messages
        assert placeholder["role"] == "assistant" and placeholder["content"] in (CUT, UNANSWERED)
        assert asked == {"role": "user", "content": "\n\n".join(each["text"] for each in before)}
    if single is not None and single.is_a_thread:
        assert messages[: len(single.rounds)] == single.rounds
        rest = messages[len(single.rounds) :]
        assert len(rest) == (single.rounds[-1]["role"] == "user")
        assert all(each["role"] == "assistant" and each["content"].endswith(" before any text]") for each in rest)
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


def _place_of(event: Row, leaf: str) -> Row | None:
    """Where a delivery says that the leaf has the message."""
    places = event["data"].get("goals", ()) if event["type"] == "message_delivered" else ()
    return next((place for place in places if place["goal_id"] == leaf), None)


def _said_of(log: list[Row], leaf: str, result: str | None) -> Said:
    """Texts, calls, results and messages of the user of one goal as the messages that they make."""
    made: list[Row] = []
    told: dict[int, list[tuple[Row, bool]]] = {}
    results = {event["call_id"]: event["data"] for event in log if event["type"] == "tool_result"}
    was_result = False
    for event in log:
        place = _place_of(event, leaf)
        is_cut = any(cut for _, cut in told.get(len(made), ()))
        if place is not None:
            told.setdefault(place["round"], []).append((event["data"], place["cut"]))
        elif event["type"] == "retry":  # the next attempt has all that has come
            for number in sorted(number for number in told if number > len(made)):
                told.setdefault(len(made), []).extend(told.pop(number))
        elif event["type"] == "text":
            if not made or made[-1]["calls"] or is_cut:
                made.append({"content": "", "calls": []})
            made[-1]["content"] += event["data"]["text"]
        elif event["type"] == "tool_call":
            if not made or was_result or is_cut:
                made.append({"content": "", "calls": []})
            made[-1]["calls"].append(event)
        was_result = event["type"] == "tool_result" or (was_result and event["type"] not in ("text", "tool_call"))
    said: list[Row] = []
    for number, each in enumerate(made):
        said += _asked_before(told.get(number, []), said)
        said += _as_messages(each, results)
    for number in sorted(number for number in told if number >= len(made)):
        said += _asked_before(told[number], said)
    ids = [message["message_id"] for each in told.values() for message, _ in each]
    return Said(said, result, [each["content"] if each["content"].strip() else "" for each in made], ids)


def _asked_before(told: list[tuple[Row, bool]], said: list[Row]) -> list[Row]:
    if not told:
        return []
    asked = {"role": "user", "content": "\n\n".join(message["text"] for message, _ in told)}
    if said and said[-1]["role"] != "user":
        return [asked]
    return [{"role": "assistant", "content": CUT if any(cut for _, cut in told) else UNANSWERED}, asked]


def _as_messages(made: Row, results: dict[str, Row]) -> list[Row]:
    message = {"role": "assistant", "content": made["content"] if made["content"].strip() else ""}
    if made["calls"]:
        message["tool_calls"] = [
            {"id": call["call_id"], "type": "function",
             "function": {"name": call["data"]["name"], "arguments": _an_object(call["data"]["arguments"])}}
            for call in made["calls"]
        ]  # fmt: skip
    said = [message] if made["calls"] or message["content"] else []
    for call in made["calls"]:
        result = results.get(call["call_id"], {"content": None, "is_error": False})
        tool = {"role": "tool", "tool_call_id": call["call_id"], "content": result["content"]}
        said.append(tool | ({"is_error": True} if result["is_error"] else {}))
    return said


def _an_object(arguments: str) -> str:
    good = arguments.startswith("{") or not arguments  # of those that are drawn
    return (arguments or "{}") if good else json.dumps({"invalid_arguments": arguments}, ensure_ascii=False)
