"""The five checks with which every stop test ends."""

import os
from pathlib import Path
from typing import Any

from core.tool.supervised import MARK
from tests.support.api_client import Run
from tests.support.model_server import ModelServer, script
from tests.support.servers import wait_until

TURN_ENDS = ("turn_completed", "turn_cancelled", "turn_failed")

Event = dict[str, Any]
Message = dict[str, Any]


def five_checks(run: Run, models: ModelServer, key: str = "", is_batch: bool = False) -> list[Event]:
    """Nothing is left, the state is steady, the next message works, and nothing of the old turn shows up in it.

    1. No call of this test (``key``) is open at the model server. 2. No process that a tool call of the run has
    started is alive, and no tool call lacks its result. 3. The state is parked or terminal, and stays so.
    4. The next message passes ``strict``. 5. No event of the old turn comes after its end. Returns all events.
    """
    state = run.wait_parked()
    models.wait_open(0, key=key)
    old_turn = run.view()["turn_id"]
    before = _all_events(run)
    assert processes_of(before) == []
    _check_ends(before)
    _check_calls(before, run.transcript())
    assert run.state == state
    follow_up = run
    if is_batch or state in ("completed", "cancelled", "failed"):
        follow_up = run.api.start(script("strict", key=key or "next"), session_id=run.session_id)
    else:
        run.say(script("strict", key=key or "next"))
    after = before[-1]["seq"] if follow_up is run else 0
    events = follow_up.events(after=after)
    assert "turn_completed" in [event["type"] for event in events], _failure(events)
    assert all(event.get("turn_id") != old_turn for event in events)
    assert follow_up.state == "awaiting_input"
    whole = _all_events(run)
    _check_ends(whole)
    return whole


def wait_no_process(run: Run) -> None:
    """After a server was killed: its tools' supervisors see that, and need a moment of the machine to act."""
    events = _all_events(run)
    wait_until(lambda: processes_of(events) == [], "the end of what the killed server's tools had started")


def _all_events(run: Run) -> list[Event]:
    """What is there now: the run is parked or over, so the last event is known."""
    last = run.view()["last_seq"]
    return run.events(lambda event: event["seq"] == last)


def processes_of(events: list[Event]) -> list[str]:
    """The command lines of the living processes that tool calls of these events have started, by their mark."""
    marks = {f"{MARK}={event['call_id']}".encode() for event in events if event["type"] == "tool_call"}
    if not marks:
        return []
    return [_read(pid, "cmdline").decode(errors="replace") for pid in _pids() if marks & _variables(pid)]


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _variables(pid: str) -> set[bytes]:
    """The environment of a process; empty for a dead one that nobody has taken in."""
    return set(_read(pid, "environ").split(b"\0"))


def _read(pid: str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _check_ends(events: list[Event]) -> None:
    """Each turn has exactly one terminal event and nothing after it; the run at most one, at the very end."""
    started = [event["turn_id"] for event in events if event["type"] == "turn_started"]
    for turn_id in started:
        of_turn = [event["type"] for event in events if event.get("turn_id") == turn_id]
        assert [kind for kind in of_turn if kind in TURN_ENDS] == of_turn[-1:], of_turn
    run_ends = [event for event in events if event["type"] in ("run_completed", "run_cancelled", "run_failed")]
    assert run_ends in ([], events[-1:])
    goals: dict[tuple[str, str], str] = {}
    for event in events:
        if event["type"] == "goal_status":
            place = (event["turn_id"], event["goal_id"])
            assert goals.get(place) not in ("COMPLETED", "FAILED", "CANCELLED"), f"{place} moved after its end"
            goals[place] = event["status"]
    assert all(status in ("COMPLETED", "FAILED", "CANCELLED") for status in goals.values()), goals


def _check_calls(events: list[Event], transcript: list[Message]) -> None:
    """Each tool call has exactly one result: among the events, and directly after it in the transcript."""
    asked: dict[str, str] = {}
    answered: set[str] = set()
    for event in events:
        if event["type"] == "tool_call":
            assert event["call_id"] not in asked, f"two tool calls {event['call_id']}"
            asked[event["call_id"]] = event["turn_id"]
        elif event["type"] in ("tool_output", "tool_result"):
            assert asked.get(event["call_id"]) == event["turn_id"], f"{event} belongs to no tool call"
            assert event["call_id"] not in answered, f"{event} came after the call's result"
            if event["type"] == "tool_result":
                answered.add(event["call_id"])
    assert answered == asked.keys(), "tool calls without a result"
    check_results(transcript)


def check_results(messages: list[Message]) -> None:
    """Each tool call has exactly one result directly after its message, in the order of the calls."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert open_calls[:1] == [message["tool_call_id"]], f"a result out of place: {messages}"
            open_calls.pop(0)
            continue
        assert open_calls == [], f"calls without a result: {messages}"
        open_calls = [call["id"] for call in message.get("tool_calls", ())]
    assert open_calls == [], f"calls without a result: {messages}"


def _failure(events: list[Event]) -> str:
    return str([event for event in events if event["type"] in (*TURN_ENDS, "goal_status", "retry")])
