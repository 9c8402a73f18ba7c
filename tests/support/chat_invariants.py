"""What must hold of a session whatever happens: read from the store, by rules that are written out here once more."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, select, text

from core.call import CallKind, Outcome
from core.cancellation import CauseWord
from core.plan.goal_status import FINAL, MOVES
from core.provider.provider import ModelRequest
from core.session import run_state
from core.session.transcript import read_transcript, request_messages
from core.store.tables import events, messages, runs, turns
from tests.support.chat_said import Row, SaidByGoal, check_said, plan_of, said_by, told_in
from tests.support.strict_request import check_request

TURN_ENDS: Final = {"turn_completed": "completed", "turn_cancelled": "cancelled", "turn_failed": "failed"}
RUN_ENDS: Final = {"run_completed": "completed", "run_cancelled": "cancelled", "run_failed": "failed"}
FATES: Final = {"message_delivered": "delivered", "message_returned": "returned", "message_withdrawn": "withdrawn"}
#: What moves, from where, to where. A run moves by its own table.
_MOVES: Final[dict[str, dict[str | None, set[str]]]] = {
    "turn": {None: {"open"}, "open": set(TURN_ENDS.values())},
    "left_out": {None: {"rolled_back", "resumed"}},
    "message": {None: {"queued"}, "queued": {"held", *FATES.values()}, "held": {"queued", "returned", "withdrawn"}},
}  # fmt: skip
#: What a turn does not say any more once its stop is recorded.
_NOT_AFTER_STOP: Final = ("text", "tool_call", "retry")


@dataclass
class Told:
    """What the server has answered, and so must stand by."""

    #: Message id -> run, text, client_message_id.
    messages: dict[str, tuple[str, str, str | None]] = field(default_factory=dict)
    #: Runs and turns of which it said ``stopped: true``, with the receipt so far.
    stops: list[tuple[str, str, list[Row]]] = field(default_factory=list)
    #: Turn, goal and, of a call, call of which it said so.
    parts: list[tuple[str, str, str | None]] = field(default_factory=list)
    #: Ids of messages of which it said that they are withdrawn, or returned.
    fates: list[tuple[str, str]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    #: Runs that were terminated.
    ended: list[str] = field(default_factory=list)

    def copy(self) -> Told:
        """As it is now."""
        return Told(
            dict(self.messages), list(self.stops), list(self.parts), list(self.fates), list(self.runs), list(self.ended)
        )


class Log:
    """All that is committed of a session."""

    def __init__(self, connection: Connection, session_id: str) -> None:
        def rows(query: Any) -> list[Row]:
            return [dict(row) for row in connection.execute(query).mappings()]

        self.runs = rows(select(runs).where(runs.c.session_id == session_id).order_by(runs.c.created_at, runs.c.id))
        self.turns = rows(select(turns).where(turns.c.session_id == session_id).order_by(turns.c.number))
        self.messages = rows(select(messages).order_by(messages.c.run_id, messages.c.number))
        self.moves = rows(text("SELECT * FROM witness ORDER BY number"))
        self.events: dict[str, list[Row]] = {run["id"]: [] for run in self.runs}
        for event in rows(select(events).order_by(events.c.run_id, events.c.seq)):
            event["data"] = json.loads(event["data"])
            self.events[event["run_id"]].append(event)
        self.transcript = read_transcript(connection, session_id)

    def of_turn(self, turn: Row) -> list[Row]:
        """The events of a turn."""
        return [event for event in self.events[turn["run_id"]] if event["turn_id"] == turn["id"]]


def check(log: Log, earlier: Log | None, told: Told) -> None:
    """Every invariant. ``earlier`` is the log at the step before."""
    _check_moves(log)
    for run in log.runs:
        _check_run(run, [turn for turn in log.turns if turn["run_id"] == run["id"]], log.events[run["id"]])
    ends: dict[str, list[Row]] = {}
    said: dict[str, SaidByGoal] = {}
    told_by: dict[str, list[Row]] = {}
    for turn in log.turns:
        of_turn = log.of_turn(turn)
        _check_turn(turn, of_turn)
        said[turn["id"]] = said_by(of_turn, said.get(turn["resumes"], {}))
        told_by[turn["id"]] = told_by.get(turn["resumes"], []) + told_in(of_turn)
        if turn["state"] != "open":
            ends[turn["id"]] = of_turn[-1]["data"]["messages"]
            check_said(turn, of_turn, said[turn["id"]], told_by[turn["id"]], ends.get(turn["resumes"]))
    _check_resumed(log)
    _check_messages(log)
    _check_transcript(log)
    _check_told(log, told)
    if earlier is not None:
        for run_id, before in earlier.events.items():
            assert log.events[run_id][: len(before)] == before, "what was committed has changed"
        assert log.moves[: len(earlier.moves)] == earlier.moves


# -- moves, as the database noted them -------------------------------------------------------------


def _check_moves(log: Log) -> None:
    now: dict[tuple[str, str], str | None] = {}
    for move in log.moves:
        what, old, new = move["what"], move["old"], move["new"]
        if what != "run":
            may = new in _MOVES[what].get(old, ())
        else:
            may = new == "queued" if old is None else run_state.may_move(old, run_state.RunState(new))
        assert may, f"{what} moved from {old} to {new}"
        assert now.get((what, move["id"])) == old
        now[what, move["id"]] = new
    live = [run for run in log.runs if run["state"] not in run_state.TERMINAL]
    assert len(live) <= 1


# -- a run -------------------------------------------------------------------------------------------


def _check_run(run: Row, of_run: list[Row], log: list[Row]) -> None:
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    types = [event["type"] for event in log]
    assert types[0] == "run_started" and types.count("run_started") == 1
    open_turn, begun = None, []
    for event in log:
        kind, turn_id = event["type"], event["turn_id"]
        if kind == "turn_started":
            assert open_turn is None and turn_id not in begun, "a turn began in another"
            open_turn = turn_id
            begun.append(turn_id)
        elif turn_id is not None:
            assert turn_id == open_turn, f"{kind} of a turn that is over"
        if kind in TURN_ENDS:
            assert open_turn is not None
            open_turn = None
        assert kind not in ("awaiting_input", "turn_rolled_back", *RUN_ENDS) or open_turn is None
    assert begun == [turn["id"] for turn in of_run]
    assert [turn["id"] for turn in of_run if turn["state"] == "open"] == ([open_turn] if open_turn else [])
    assert (run["state"] in run_state.OPEN) == (open_turn is not None)
    ends = [RUN_ENDS[kind] for kind in types if kind in RUN_ENDS]
    assert ends == ([run["state"]] if run["state"] in run_state.TERMINAL else [])
    assert not ends or types[-1] in RUN_ENDS, "something follows the run's end"
    if run["state"] == "awaiting_input":
        last_end = max(index for index, kind in enumerate(types) if kind in TURN_ENDS)
        assert types[last_end:].count("awaiting_input") == 1 and run["interactive"]


# -- a turn ------------------------------------------------------------------------------------------


def _check_turn(turn: Row, log: list[Row]) -> None:
    types = [event["type"] for event in log]
    ends = [TURN_ENDS[kind] for kind in types if kind in TURN_ENDS]
    assert ends == ([] if turn["state"] == "open" else [turn["state"]])
    stops = [event for event in log if event["type"] == "stop_requested" and event["goal_id"] is None]
    assert len(stops) <= 1
    _check_part_stops(log)
    if stops:
        late = log[log.index(stops[0]) :]
        assert not [event for event in late if event["type"] in _NOT_AFTER_STOP], "it went on after its stop"
        assert not [event for event in late if event["data"].get("status") in ("IN_PROGRESS", "CHILDREN_IN_PROGRESS")]
        assert not told_in(late), "a message went in after the stop"
    assert not [event for event in log if "LATE" in json.dumps(event["data"]) and event["type"] != "turn_started"]
    _check_goals(turn, log)
    _check_calls(turn, log)
    if turn["state"] == "open":
        return
    end = log[-1]
    assert end["type"] in TURN_ENDS and end["seq"] == turn["end_seq"]
    assert turn["usage"] == end["data"]["usage"] == _sum_usage(log)
    assert (turn["state"] == "cancelled") == bool(stops)
    if stops:
        assert end["data"]["cause"] == stops[0]["data"]["cause"] == turn["stop"]["cause"]
        assert end["data"]["cause"] in set(CauseWord)
        _check_receipt(end["data"]["receipt"])
        assert end["data"]["inbox"] == turn["stop"]["inbox"]


def _check_goals(turn: Row, log: list[Row]) -> None:
    goals = {goal["id"]: goal for goal in plan_of(log)}
    newest: dict[str, Row] = {}

    def status(goal_id: str) -> str:
        return newest[goal_id]["status"] if goal_id in newest else "NOT_STARTED"

    for event in log:
        if event["type"] != "goal_status":
            continue
        goal_id, new = event["goal_id"], event["data"]["status"]
        assert new in MOVES[status(goal_id)], f"goal {goal_id} moved from {status(goal_id)} to {new}"  # type: ignore[index]
        if new in ("IN_PROGRESS", "CHILDREN_IN_PROGRESS"):
            for each in goals[goal_id]["path"]:
                assert all(status(other) == "COMPLETED" for other in goals[each]["depends_on"]), "it began too early"
        newest[goal_id] = event["data"]
    if turn["state"] != "open":
        assert {goal_id: status(goal_id) for goal_id in goals} == {each["id"]: each["status"] for each in goals.values()}
        assert all(goal["status"] in FINAL for goal in goals.values())


def _check_calls(turn: Row, log: list[Row]) -> None:
    called = [event["call_id"] for event in log if event["type"] == "tool_call"]
    answered = [event["call_id"] for event in log if event["type"] == "tool_result"]
    assert len(set(called)) == len(called) and len(set(answered)) == len(answered)
    assert set(answered) <= set(called)
    if turn["state"] != "open":
        assert set(answered) == set(called), "a tool call without a result"


def parts_of(log: list[Row], kind: str) -> list[str]:
    """Ids of the goals, or of the tool calls, of a turn."""
    if kind == "goal":
        return [goal["id"] for goal in plan_of(log)]
    return [event["call_id"] for event in log if event["type"] == "tool_call"]


def _check_stopped_call(log: list[Row], call_id: str) -> None:
    of_call = [event for event in log if event["call_id"] == call_id and event["type"] == "tool_result"]
    for data in (event["data"] for event in of_call):
        assert data["is_error"] and data["content"].startswith("cancelled")


def _check_part_stops(log: list[Row]) -> None:
    """A goal or a call that was stopped alone ends by that, and says nothing more; it is recorded once."""
    around = {goal["id"]: goal["path"] for goal in plan_of(log)}
    asked = [event for event in log if event["type"] == "stop_requested" and event["goal_id"] is not None]
    parts = [(event["goal_id"], event["call_id"]) for event in asked]
    assert len(set(parts)) == len(parts)
    for event in asked:
        late = log[log.index(event) :]
        if event["call_id"] is not None:
            _check_stopped_call(late, event["call_id"])
            continue
        inside = [each for each in late if event["goal_id"] in around.get(each["goal_id"], ())]
        assert not [each for each in inside if each["type"] in _NOT_AFTER_STOP], "it went on after its stop"
        assert not [each for each in inside if each["data"].get("status") in ("IN_PROGRESS", "CHILDREN_IN_PROGRESS")]


def _sum_usage(log: list[Row]) -> Row | None:
    used = [event["data"] for event in log if event["type"] == "usage"]
    if not used:
        return None
    total: Row = {"calls": len(used)}
    for name in ("input_tokens", "output_tokens"):
        numbers = [each[name] for each in used if each[name] is not None]
        assert 0 not in numbers or all(each["source"] == "observed" for each in used if each[name] == 0)
        total[name] = sum(numbers) if numbers else None
    sources = {each["source"] for each in used}
    return total | {"source": sources.pop() if len(sources) == 1 else "mixed"}


def _check_receipt(receipt: list[Row]) -> None:
    for item in receipt:
        assert item["kind"] in set(CallKind) and item["outcome"] in set(Outcome), item
        assert item["took_ms"] is None or (isinstance(item["took_ms"], int) and item["took_ms"] >= 0)
    found = [(item["kind"], item["id"]) for item in receipt]
    assert len(set(found)) == len(found)


def _check_resumed(log: Log) -> None:
    """A goal that was completed once is never worked on again by a turn that resumes that one."""
    finished: dict[str, dict[str, Any]] = {}
    for turn in log.turns:
        of_turn = log.of_turn(turn)
        inner = {goal["id"] for goal in plan_of(of_turn) if goal["goals"]}
        before = finished.get(turn["resumes"], {})
        done = {
            event["goal_id"]: event["data"].get("result")
            for event in of_turn
            if event["type"] == "goal_status" and event["data"]["status"] == "COMPLETED" and event["goal_id"] not in inner
        }
        worked = {event["goal_id"] for event in of_turn if event["type"] in ("text", "tool_call", "usage")}
        assert not worked & before.keys(), "a finished goal was worked on again"
        assert all(done[goal_id] == before[goal_id] for goal_id in done.keys() & before.keys())
        finished[turn["id"]] = before | done


# -- messages that wait ----------------------------------------------------------------------------------


def _check_messages(log: Log) -> None:
    state_of = {run["id"]: run["state"] for run in log.runs}
    delivered: dict[str, list[int]] = {}
    came = [move["id"] for move in log.moves if move["what"] == "message" and move["old"] is None]
    for message in sorted(log.messages, key=lambda message: came.index(message["id"])):
        of_run = log.events[message["run_id"]]
        mine = [event for event in of_run if event["data"].get("message_id") == message["id"]]
        fates = [FATES[event["type"]] for event in mine if event["type"] in FATES]
        assert fates == ([message["state"]] if message["state"] in FATES.values() else [])
        assert message["state"] in FATES.values() or state_of[message["run_id"]] not in run_state.TERMINAL
        begun = [event for event in mine if event["type"] == "turn_started"]
        has_gone_in = bool(told_in(mine))
        is_first = fates == ["delivered"] and not has_gone_in
        assert [event["data"]["input"] for event in begun] == ([message["text"]] if is_first else [])
        if has_gone_in:
            _check_told_once(message, mine)
        if begun and message["mode"] != "interrupt":
            assert message["settled_at"] is not None
            assert begun[0]["turn_id"] == message["turn_id"]
            if not [event for event in mine if event["type"] == "message_moved"]:
                delivered.setdefault(message["run_id"], []).append(begun[0]["seq"])
    assert all(seqs == sorted(seqs) for seqs in delivered.values()), "delivered out of order"
    for turn in log.turns:
        positions = [each["position"] for each in told_in(log.of_turn(turn))]
        assert positions == list(range(1, len(positions) + 1))
    _check_inbox_of_stops(log)


def _check_told_once(message: Row, mine: list[Row]) -> None:
    """A message that went into a turn at work."""
    (event,) = (event for event in mine if event["type"] == "message_delivered")
    about, mode = event["data"], message["mode"]
    assert mode in ("steer", "redirect")
    assert (event["turn_id"], about["position"]) == (message["turn_id"], message["position"])
    assert (about["text"], about["mode"]) == (message["text"], mode)
    assert message["goal_id"] is None or {place["goal_id"] for place in about["goals"]} == {message["goal_id"]}
    assert message["settled_at"] is not None


def _check_inbox_of_stops(log: Log) -> None:
    """What the record of a stop says of the messages is what became of them."""
    states = {message["id"]: message["state"] for message in log.messages}
    for turn in log.turns:
        told = (turn["stop"] or {}).get("inbox") or {}
        for fate in ("returned", "withdrawn"):
            assert [states[message_id] for message_id in told.get(fate, ())] == [fate] * len(told.get(fate, ()))
        assert turn["state"] != "open" or "returned" not in [states[message_id] for message_id in told.get("kept", ())]


# -- the transcript ----------------------------------------------------------------------------------------


def _check_transcript(log: Log) -> None:
    expected: list[Row] = []
    for turn in log.turns:
        if turn["left_out"] is None:
            expected.append({"role": "user", "content": turn["input"], "turn_id": turn["id"]})
            if turn["state"] != "open":
                end = log.of_turn(turn)[-1]
                expected += [{**message, "turn_id": turn["id"]} for message in end["data"]["messages"]]
    assert [message for message in log.transcript if message["turn_id"] is not None] == expected
    if all(turn["state"] != "open" for turn in log.turns):
        check_request(ModelRequest(request_messages("Be brief.", log.transcript, "next"), "m"))


# -- what was answered ---------------------------------------------------------------------------------------


def _check_told(log: Log, told: Told) -> None:
    states = {run["id"]: run["state"] for run in log.runs}
    assert states.keys() >= set(told.runs)
    assert all(states[run_id] in run_state.TERMINAL for run_id in told.ended)
    rows = {message["id"]: message for message in log.messages}
    for message_id, (run_id, words, client_id) in told.messages.items():
        row = rows[message_id]
        assert (row["run_id"], row["text"], row["client_message_id"]) == (run_id, words, client_id)
    for message_id, state in told.fates:
        assert rows[message_id]["state"] == state, f"it said that it was {state}"
    for turn_id, goal_id, call_id in told.parts:
        of_turn = log.of_turn(next(turn for turn in log.turns if turn["id"] == turn_id))
        ends = [event["data"] for event in of_turn if event["goal_id"] == goal_id and event["type"] == "goal_status"]
        if call_id is not None:
            _check_stopped_call(of_turn, call_id)
        elif not next(goal for goal in plan_of(of_turn) if goal["id"] == goal_id)["goals"]:
            assert "COMPLETED" not in [each["status"] for each in ends], "it said that it had stopped the goal"
    for run_id, turn_id, so_far in told.stops:
        turn = next(turn for turn in log.turns if turn["id"] == turn_id)
        assert (turn["run_id"], turn["state"]) == (run_id, "cancelled"), "it said that it had stopped the turn"
        final = {(item["kind"], item["id"]): item for item in log.of_turn(turn)[-1]["data"]["receipt"]}
        for item in so_far:
            assert final[item["kind"], item["id"]]["outcome"] == item["outcome"]
