"""Each kind of tool, whatever it is: a stop reaches it, reaches nothing else, and leaves no trace in what follows.

The kinds are in ``tests/support/tool_kinds.py``; every phase and every way of ending a turn is in ``test_stop_matrix.py``.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from tests.support.api_client import Api, Run, in_threads
from tests.support.delegating import delegated
from tests.support.five_checks import TURN_ENDS, five_checks
from tests.support.going_back import of_type
from tests.support.mcp_kit import results_of, wait_ready
from tests.support.model_server import ModelServer
from tests.support.own_tools import stages
from tests.support.part_stops import cancel_call, cancel_goal, events_now
from tests.support.plans import all_events, say_done, seen_at, stop_causes
from tests.support.race_kit import check_nothing_left
from tests.support.raw_server import PATIENCE_S, RawServer
from tests.support.servers import LocalServer, ServerProcess, gate
from tests.support.stop_matrix import BOUND_S, Phase, World
from tests.support.stop_matrix_servers import prepare, settings, world_of
from tests.support.stop_matrix_stops import STOP
from tests.support.tool_halves import CUT, HALVES, SUB_PROMPT, WHOLE, Half, gateway, half_an_answer, wait_said
from tests.support.tool_kinds import (
    KINDS,
    MODULES,
    TOOLS,
    ToolKind,
    Turn,
    Watched,
    check_gone,
    crowd,
    process_with_tools,
    world_of_process,
)

pytestmark = pytest.mark.spread(3)

GONE = replace(STOP, name="hang-up", cause="client_gone")
WAIT: dict[str, Any] = {"wait_ms": 30_000}

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.fixture(scope="module")
def shared(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server in this process with every kind of tool."""
    fields = settings(tmp_path_factory.mktemp("kinds"), models, "de2generator", (*TOOLS, "halves"))
    with LocalServer(**fields | {"tool_modules": (MODULES, "tests.support.tool_halves")}) as server:
        prepare(server, models, "kinds")
        yield server


@pytest.fixture
def world(shared: LocalServer, models: ModelServer, key: str) -> Iterator[World]:
    """A user of that server who has nothing yet; nothing may be left of the test."""
    found = world_of(shared, models, key)
    yield found
    found.api.close()
    for stage in stages.values():
        stage.go.set()
    check_nothing_left(shared)
    stages.clear()


@pytest.fixture(scope="module")
def process(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in a process of its own with every kind of tool. Tests that end it start it again."""
    with process_with_tools(tmp_path_factory.mktemp("kinds-process"), models) as server:
        yield server


@pytest.fixture
def far(process: ServerProcess, models: ModelServer, key: str, kind: ToolKind) -> World:
    """A user of that server who has nothing yet."""
    found = world_of_process(process, models, key)
    if "mcp" in kind.row.tools:
        wait_ready(found.api, key, found.mcp)
    return found


def _beside(world: World, letter: str) -> World:
    """The same user, and another of everything by which a call is known."""
    return replace(world, key=f"{world.key}-{letter}", raw=None)


def _stop(world: World, run: Run, kind: ToolKind, **fields: Any) -> None:
    """The stop, and that it has found the tool at work and ended it."""
    answer = run.cancel(**WAIT, **fields)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    kind.check_ended(world, run, STOP, answer["receipt"])


# -- the stop reaches whoever does the work ------------------------------------------------------


@each_kind
def test_a_stop_reaches_whoever_does_the_work_and_no_model_is_asked_any_more(world: World, kind: ToolKind) -> None:
    with kind.at_work(world) as run:
        calls = world.model_calls()
        asked_at = time.monotonic()
        _stop(world, run, kind)
        assert time.monotonic() - asked_at < BOUND_S
    before = all_events(run)
    kind.row.let_go(world, kind.phase)  # what the deaf one still says is heard by nobody
    assert (world.model_calls(), all_events(run)) == (calls, before)
    five_checks(run, world.models, world.key)
    assert world.model_calls() == calls + 1  # that of the next message


@each_kind
def test_ten_stops_at_once_get_one_receipt_and_are_recorded_as_one(world: World, kind: ToolKind) -> None:
    apis = [Api(world.api.url, world.api.token) for _ in range(10)]
    # The turn ends no sooner than all ten have met it: the last one would find nothing to stop.
    with gate("engine.before_final_write") as end, crowd("turn.scope_closed", len(apis), end.open):
        with kind.at_work(world) as run:
            answers = in_threads(len(apis), lambda number: apis[number].post(f"{run.path}/cancel", WAIT))
            kind.check_ended(world, run, STOP, answers[0]["receipt"])
    assert [(each["stopped"], each["parked"]) for each in answers] == [(True, True)] * 10
    assert [each["receipt"] for each in answers] == [answers[0]["receipt"]] * 10
    for api in apis:
        api.close()
    assert stop_causes(run) == ["user"]
    assert len(run.api.get(f"{run.path}/receipts")["receipts"]) == 1
    five_checks(run, world.models, world.key)


# -- and nothing that comes later -------------------------------------------------------------------


@each_kind
def test_after_one_stop_twenty_turns_come_to_their_end_and_stops_in_between_find_nothing(
    world: World, kind: ToolKind
) -> None:
    with kind.at_work(world) as run:
        _stop(world, run, kind)
    other = _beside(world, "quick")
    with kind.row.peer(other, Phase.LATE):
        for number in range(20):
            assert run.cancel()["stopped"] is False
            uses_tool = number % 2 == 0
            turn = Turn(run, kind.row.line(other, Phase.LATE) if uses_tool else say_done(other.key))
            events = turn.events()
            assert [event["type"] for event in events if event["type"] in TURN_ENDS] == ["turn_completed"]
            results = [event["content"] for event in events if event["type"] == "tool_result"]
            assert len(results) == uses_tool
            assert all(fnmatchcase(result, kind.row.expected[Phase.LATE].results[0]) for result in results)
        before = all_events(run), run.transcript(), run.view()
        assert run.cancel(**WAIT)["stopped"] is False
        assert (all_events(run), run.transcript(), run.view()) == before
    assert stop_causes(run) == ["user"]
    assert [message["turn_id"] for message in before[1] if message.get("stopped")] == [run.first_turn]
    kind.row.let_go(world, kind.phase)
    five_checks(run, world.models, world.key)


@each_kind
def test_a_stop_that_names_the_turn_before_leaves_the_tool_of_the_next_one_at_work(
    world: World, kind: ToolKind
) -> None:
    with kind.at_work(world) as run:
        _stop(world, run, kind, if_turn=run.first_turn)
    other = _beside(world, "next")
    with kind.at_work(other, lambda line: Turn(run, line)) as turn:
        (call, *_) = events_now(turn, "tool_call")
        old: dict[str, Any] = {"if_turn": run.first_turn, "expect": 409}
        refused = [turn.cancel(**old), cancel_goal(turn, "answer", **old), cancel_call(turn, call["call_id"], **old)]
        assert [each["code"] for each in refused] == ["turn_is_over"] * 3
        assert turn.state == "running"
        _stop(other, turn, kind, if_turn=turn.first_turn)  # what was at work until now
    assert stop_causes(run) == ["user", "user"]
    for each in (world, other):
        kind.row.let_go(each, kind.phase)
    five_checks(run, world.models, other.key)


@each_kind
def test_somebody_else_finds_nothing_to_stop(world: World, kind: ToolKind) -> None:
    with kind.at_work(world) as run:
        bob = Run(world.server.api("bob"), {"run_id": run.id, "session_id": "", "turn_id": ""})
        (call, *_) = events_now(run, "tool_call")
        goals = ["answer", *(goal["id"] for goal in delegated(run).values())]
        answers = [cancel_call(bob, call["call_id"], expect=404), bob.cancel(expect=404)]
        answers += [cancel_goal(bob, goal, expect=404) for goal in goals]
        assert [each["code"] for each in answers] == ["not_found"] * len(answers)
        assert run.state == "running"
        _stop(world, run, kind)  # what was at work until now
        bob.api.close()
    assert stop_causes(run) == ["user"]
    kind.row.let_go(world, kind.phase)
    five_checks(run, world.models, world.key)


# -- the client, or the server, goes away ---------------------------------------------------------------


@each_kind
def test_the_tool_goes_on_when_its_reader_hangs_up(far: World, kind: ToolKind) -> None:
    reader = Watched(far.api, "continue")
    with kind.at_work(far, reader.start) as run:
        reader.hang_up()
        assert run.state == "running"
        _stop(far, run, kind)  # what was at work until now
    assert stop_causes(run) == ["user"]
    five_checks(run, far.models, far.key)


@each_kind
def test_the_tool_is_stopped_when_its_reader_hangs_up_and_that_was_asked_for(far: World, kind: ToolKind) -> None:
    reader = Watched(far.api, "stop")
    with kind.at_work(far, reader.start) as run:
        calls = far.model_calls()
        reader.hang_up()
        assert run.wait_parked() == "awaiting_input"
        (end,) = of_type(run, "turn_cancelled")
        assert end["cause"] == "client_gone"
        kind.check_ended(far, run, GONE, end["receipt"])
    assert (stop_causes(run), far.model_calls()) == (["client_gone"], calls)
    five_checks(run, far.models, far.key)


@each_kind
def test_a_kill_of_the_server_leaves_nothing_at_work_and_the_call_has_a_result(
    process: ServerProcess, far: World, kind: ToolKind
) -> None:
    with kind.at_work(far) as run:
        seen = all_events(run)  # so far, with what the tool has said
        calls, pids = far.model_calls(), far.mcp.pids()
        assert pids or "mcp" not in kind.row.tools
        process.kill()
        process.start()
        found = seen_at(process, run)
        check_gone(far, found, pids)
    events = all_events(found)
    assert events[: len(seen)] == seen
    (end,) = of_type(found, "turn_cancelled")
    (result,) = of_type(found, "tool_result")
    assert (end["cause"], results_of(found)) == ("server_lost", [result["content"]])
    words, _, shown = result["content"].partition("\n")
    printed = "".join(event["text"] for event in of_type(found, "tool_output")) if kind.row.name == "shell" else ""
    assert (words, json.loads(shown)["stdout"] if shown else "") == ("cancelled: server_lost", printed)
    assert {goal["status"] for goal in [*found.goals().values(), *delegated(found).values()]} == {"CANCELLED"}
    assert far.model_calls() == calls
    five_checks(found, far.models, far.key)


# -- what was said stays ------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_what_a_tool_has_said_stays_also_when_it_ends_in_the_middle_of_a_character(world: World, half: Half) -> None:
    with half_an_answer(world):
        run = world.api.start(half.line(world))
        wait_said(run, half.ready)
        run.cancel(**WAIT)
    said = "".join(event["text"] for event in of_type(run, "tool_output"))
    assert said == half.said
    (result,) = results_of(run)
    words, _, kept = result.partition("\n")
    assert words == "cancelled by operator"
    assert (half.kept_in(kept) if half.kept else kept) == half.kept
    assert [event["content"] for event in of_type(run, "tool_result")] == [result]
    five_checks(run, world.models, world.key)


def test_what_a_sub_agent_has_said_stays_also_when_it_ends_in_the_middle_of_a_character(
    models: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("kinds-half")
    with RawServer(gateway) as raw, LocalServer(folder, raw.url, tools_allowed=("delegate",)) as server:
        run = server.api().start("delegate")
        text = run.wait_event("text")
        assert (text["text"], text["goal_id"] != "answer") == (WHOLE, True)
        (sub,) = [peer for peer in raw.peers if SUB_PROMPT in str([each.body for each in peer.requests])]
        assert sub.reached.wait(PATIENCE_S)
        run.cancel(**WAIT)
        assert sub.hung_up.wait(PATIENCE_S)
        said = "".join(event["text"] for event in of_type(run, "text"))
        assert said in (WHOLE, CUT)
        (result,) = results_of(run)
        (goal,) = json.loads(result.partition("\n")[2])["goals"]
        assert (goal["status"], goal["partial"]) == ("CANCELLED", said)
        five_checks(run, models)
        check_nothing_left(server)
