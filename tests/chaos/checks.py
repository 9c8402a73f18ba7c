"""What has to hold of a run after a kill, measured by what its user was told before. Each check yields what is wrong."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.chaos.frames import read_log
from tests.chaos.witness import RUN_ENDS, TURN_ENDS, Witness
from tests.support.api_client import Api

FINAL = ("COMPLETED", "FAILED", "CANCELLED")
FATES = ("message_delivered", "message_returned", "message_withdrawn")


@dataclass(frozen=True)
class Found:
    """A settled run as the server shows it now."""

    view: dict[str, Any]
    log: dict[int, bytes]
    events: list[dict[str, Any]]
    waiting: list[str]
    transcript: list[dict[str, Any]]

    def of_type(self, *types: str) -> list[dict[str, Any]]:
        """The events of these types."""
        return [event for event in self.events if event["type"] in types]


def look(api: Api, run: Witness) -> Found:
    """Read all there is of a run that waits or is over."""
    view = api.get(run.path)
    log = read_log(api, run.path)
    waiting = [each["message_id"] for each in api.get(f"{run.path}/inbox")["messages"]]
    events = [json.loads(log[seq]) for seq in sorted(log)]
    return Found(view, log, events, waiting, api.get(f"{run.path}/transcript")["messages"])


def check(run: Witness, found: Found) -> Iterator[str]:
    """Everything that is wrong with it."""
    for each in (_log, _turns, _goals, _stops, _messages, _transcript, _end):
        for fault in each(run, found):
            yield f"{run.run_id} of {run.user}: {fault}"


def _log(run: Witness, found: Found) -> Iterator[str]:
    if sorted(found.log) != list(range(1, found.view["last_seq"] + 1)):
        yield f"the numbers of its events have gaps: {sorted(found.log)}"
    for seq, data in run.seen.items():
        if found.log.get(seq) != data:
            yield f"event {seq} was seen as {data!r} and is now {found.log.get(seq)!r}"


def _turns(run: Witness, found: Found) -> Iterator[str]:
    started = _turns_of(found)
    if started[:1] != [run.first_turn]:
        yield f"its first turn {run.first_turn} is not the first of {started}"
    for turn_id in started:
        types = [event["type"] for event in found.events if event.get("turn_id") == turn_id]
        if [kind for kind in types if kind in TURN_ENDS] != types[-1:]:
            yield f"turn {turn_id} does not end once and for all: {types}"
    ends = found.of_type(*RUN_ENDS)
    if ends not in ([], found.events[-1:]):
        yield f"its end is not its last event: {ends}"
    # The gateway is strict: a transcript that a provider would refuse shows up here.
    for event in found.of_type("turn_failed"):
        yield f"a turn failed: {event}"


def _turns_of(found: Found) -> list[str]:
    return [event["turn_id"] for event in found.of_type("turn_started")]


def _goals(run: Witness, found: Found) -> Iterator[str]:
    status: dict[tuple[str, str], str] = {}
    for event in found.of_type("goal_status"):
        goal = event["turn_id"], event["goal_id"]
        if status.get(goal) in FINAL:
            yield f"{goal} was {status[goal]} and became {event['status']}"
        status[goal] = event["status"]
    open_goals = {goal: word for goal, word in status.items() if word not in FINAL}
    if open_goals:
        yield f"goals are not final: {open_goals}"


def _stops(run: Witness, found: Found) -> Iterator[str]:
    for turn_id in run.stopped_turns:
        of_turn = [event for event in found.events if event.get("turn_id") == turn_id]
        requested = [event["cause"] for event in of_turn if event["type"] == "stop_requested"]
        ended = [event["cause"] for event in of_turn if event["type"] == "turn_cancelled"]
        if requested != ["user"] or ended != ["user"]:
            yield f"turn {turn_id} was stopped by the user, and the log has {requested} and {ended}"


def _messages(run: Witness, found: Found) -> Iterator[str]:
    fates: dict[str, list[str]] = defaultdict(list)
    for event in found.of_type(*FATES):
        fates[event["message_id"]].append(event["type"])
    for message_id in found.waiting:
        fates[message_id].append("waits")
    inputs = Counter(event["input"] for event in found.of_type("turn_started"))
    for message in run.messages:
        fate = fates[message.message_id or ""]
        if message.message_id is None:
            if message.text in inputs:
                yield f"{message} was refused when it was repeated, and had been delivered"
        elif len(fate) != 1:
            yield f"{message} has not one fate but {fate}"
        elif inputs[message.text] != (fate == ["message_delivered"]):
            yield f"{message} was {fate}, and began {inputs[message.text]} turns"


def _transcript(run: Witness, found: Found) -> Iterator[str]:
    messages = found.transcript
    if messages and messages[-1]["role"] == "user" and messages[-1]["turn_id"] not in _turns_of(found):
        messages = messages[:-1]  # a later run of the session is at work on it
    roles = [message["role"] for message in messages if message["role"] in ("user", "assistant")]
    has_tools = len(roles) < len(messages)
    if not has_tools and roles != ["user", "assistant"] * (len(roles) // 2):
        yield f"roles do not alternate: {roles}"
    said: dict[str, str] = defaultdict(str)
    for message in found.transcript:
        if message["role"] == "assistant":
            said[message["turn_id"]] += message["content"] or ""
    left_out = {event["resumes"] for event in found.of_type("turn_resumed")}
    texts: dict[tuple[str, str], str] = defaultdict(str)
    for event in found.of_type("text"):
        if event["turn_id"] not in left_out:
            texts[event["turn_id"], event["goal_id"]] += event["text"]
    for event in found.of_type("turn_resumed"):
        for goal_id, result in _results(found, event["resumes"]).items():
            texts[event["turn_id"], goal_id] = result  # taken over, and not said again
    for (turn_id, goal_id), text in texts.items():
        # What comes before and after a tool call is no one text; a turn that was resumed is shown in its successor.
        if not has_tools and turn_id not in left_out and text.strip() and text not in said[turn_id]:
            yield f"{goal_id} of {turn_id} said {text!r}, and the transcript has {said[turn_id]!r}"


def _results(found: Found, turn_id: str) -> dict[str, str]:
    """What the goals said that were completed in that turn."""
    done = [event for event in found.of_type("goal_status") if event["turn_id"] == turn_id]
    return {event["goal_id"]: event["result"] for event in done if event["status"] == "COMPLETED" and event.get("result")}


def _end(run: Witness, found: Found) -> Iterator[str]:
    state = found.view["state"]
    if run.is_terminated and state != "cancelled":
        yield f"it was terminated and is {state}"
    # A stop of a parked run may still give back what waited since an earlier stop.
    last = [event["type"] for event in found.events if event["type"] not in FATES][-1]
    if state == "awaiting_input" and last != "awaiting_input":
        yield f"it is parked, and its log ends with {found.events[-1]}"
    if state == "failed" and found.events[-1].get("cause") != "server_lost":
        yield f"it failed: {found.events[-1]}"
    if state == "failed" and run.resumes:
        yield "it was to be taken up again and has failed"
    if (state in ("completed", "cancelled", "failed")) != bool(found.of_type(*RUN_ENDS)):
        yield f"it is {state}, and the log has {found.of_type(*RUN_ENDS)}"
