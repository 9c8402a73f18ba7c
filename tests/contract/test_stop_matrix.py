"""Every kind of call, times every phase, times whatever ends it: the receipt says what the world says.

Rows and columns are in ``tests/support``: begin with ``stop_matrix.py``.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

import pytest

from core.settings import Settings
from core.tool_settings import BUILT_IN
from tests.support.api_client import PATIENCE_S, Run
from tests.support.five_checks import Event, five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer
from tests.support.own_tools import LATE, stages
from tests.support.plans import all_events
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer, wait_until
from tests.support.stop_matrix import BOUND_S, STOPPED, Phase, World
from tests.support.stop_matrix_functions import FUNCTION_KINDS
from tests.support.stop_matrix_models import MODEL_KINDS
from tests.support.stop_matrix_servers import prepare, settings, world_of
from tests.support.stop_matrix_stops import LIMIT_MS, SHUTDOWN, STOPS, Cell, bring_forward
from tests.support.stop_matrix_tools import TOOL_KINDS

pytestmark = pytest.mark.spread(3)

KINDS = MODEL_KINDS + TOOL_KINDS + FUNCTION_KINDS
CELLS = [Cell(kind, phase, stop) for kind in KINDS for phase in kind.expected for stop in STOPS]

#: Phases that a kind does not have, and why.
OMITTED = {
    ("openai", "deaf"): "our side of the socket is shut and nobody is asked; the deaf peer is in the row http request",
    ("anthropic", "deaf"): "as openai",
    ("silent server", "late"): "it never finishes",
    ("retry wait", "deaf"): "it is a wait of our own: there is nobody who could be deaf",
    ("function that is asked", "deaf"): "one that does not listen is the row of the deaf function",
    ("function that is deaf", "mid"): "it is deaf whenever it runs",
}

#: What each kind of tool needs to be allowed; the servers that are shared allow all of it.
ALL_TOOLS = tuple(dict.fromkeys(name for kind in KINDS for name in kind.tools))


def _params(*cells: Cell) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cell", cells, ids=str)


@pytest.fixture(scope="module")
def shared(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LocalServer]]:
    """One server a provider, for all cells that do not end it; that of the default provider has all tools."""
    with ExitStack() as stack:
        servers: dict[str, LocalServer] = {}

        def server_of(provider: str) -> LocalServer:
            if provider not in servers:
                folder = tmp_path_factory.mktemp(f"matrix-{provider}")
                tools = ALL_TOOLS if provider == "de2generator" else ()
                servers[provider] = stack.enter_context(LocalServer(**settings(folder, models, provider, tools)))
                prepare(servers[provider], models, f"matrix-{provider}")
            return servers[provider]

        yield server_of


@pytest.fixture
def world(shared: Callable[[str], LocalServer], cell: Cell, models: ModelServer, key: str) -> Iterator[World]:
    """A user who has nothing yet; nothing may be left of the cell."""
    server = shared(cell.kind.provider)
    found = world_of(server, models, key)
    yield found
    found.api.close()
    check_nothing_left(server)


@pytest.fixture(autouse=True)
def _free_stages() -> Iterator[None]:
    yield
    for stage in stages.values():
        stage.go.set()
    stages.clear()


# -- the table -------------------------------------------------------------------------------


def test_no_square_of_the_matrix_is_forgotten() -> None:
    every = {(kind.name, phase.value, stop.name) for kind in KINDS for phase in Phase for stop in STOPS}
    played = [cell.place for cell in CELLS]
    left_out = {(*place, stop.name) for place in OMITTED for stop in STOPS}
    assert len(played) == len(set(played))
    assert set(played) | left_out == every
    assert not set(played) & left_out
    assert all(OMITTED.values())


def test_every_provider_and_every_tool_of_the_server_has_a_row() -> None:
    providers = get_args(Settings.model_fields["llm_provider"].annotation)
    assert {kind.provider for kind in KINDS} == set(providers)
    # A question outlives a shutdown, so it has tables of its own: test_question_*.py.
    assert set(BUILT_IN) - {"ask_user"} <= set(ALL_TOOLS)


# -- what ends the turn ------------------------------------------------------------------------


@_params(*(cell for cell in CELLS if cell.stop is not SHUTDOWN and not cell.is_own_limit))
def test_the_turn_is_over_in_time_and_its_receipt_is_what_really_happened(world: World, cell: Cell) -> None:
    with cell.kind.peer(world, cell.phase):
        run = _enter_and_stop(world, cell)
        assert run.wait_parked() == cell.stop.state
        _check_stopped(world, run, cell)
        _check_afterwards(world, run, cell)


@_params(*(cell for cell in CELLS if cell.stop is SHUTDOWN))
def test_a_server_that_shuts_down_is_gone_in_time_and_its_last_receipts_are_what_really_happened(
    models: ModelServer, tmp_path: Path, cell: Cell, key: str
) -> None:
    fields = settings(tmp_path, models, cell.kind.provider, cell.kind.tools)
    with LocalServer(**fields) as server:
        world = prepare(server, models, key)
        with cell.kind.peer(world, cell.phase):
            run = _enter_and_stop(world, cell)
            server.runtime.close(PATIENCE_S)
            assert time.time() - world.stopped_at < 2 * BOUND_S  # the turn, and then threads, files and processes
            with LocalServer(**fields | {"tools_allowed": ()}) as following:
                run.api = world.api = following.api(key)
                assert run.state == cell.stop.state
                _check_stopped(world, run, cell)
                _check_afterwards(world, run, cell)
    check_nothing_left(server)


def _enter_and_stop(world: World, cell: Cell) -> Run:
    with cell.kind.held(world, cell.phase, **cell.stop.fields) as run:
        assert world.model_calls() == cell.expected.model_calls
        world.stopped_at = time.time()
        cell.stop.send(world, run)
    return run


def _check_stopped(world: World, run: Run, cell: Cell) -> None:
    (end,) = of_type(run, "turn_cancelled")
    assert end["cause"] == cell.stop.cause
    assert _seconds_after_stop(world, end) < BOUND_S
    _check_receipt(end, run, cell)
    results = [event["content"] for event in of_type(run, "tool_result")]
    _check_fit(results, cell.expected.results, cell)
    assert world.model_calls() == cell.expected.model_calls
    cell.kind.check_world(world, run, cell.phase, cell.stop)


def _check_receipt(end: Event, run: Run, cell: Cell) -> None:
    receipt = end["receipt"]
    (entry,) = run.api.get(f"{run.path}/receipts")["receipts"]
    assert entry["receipt"] == receipt
    assert all(item["took_ms"] < BOUND_S * 1000 for item in receipt)
    found = [f"{item['kind']} {item['outcome']}: {item['how']}" for item in receipt]
    if cell.expected.abandoned:  # on a slow machine a goal's own bound may come before the news that its tool is gone
        found = ["goal cancelled: stopped" if each.startswith("goal abandoned: ") else each for each in found]
    _check_fit(found, (*cell.expected.receipt, "goal cancelled: stopped"), cell)


def _check_fit(found: list[str], patterns: tuple[str, ...], cell: Cell) -> None:
    """Each pattern takes one of what was found, and none is left."""
    words = "cancelled by operator" if cell.stop.cause == "user" else f"cancelled: {cell.stop.cause}"
    left = list(found)
    for pattern in (words if each == STOPPED else each for each in patterns):
        fitting = [each for each in left if fnmatchcase(each, pattern)]
        assert fitting, f"nothing like {pattern!r} among {found}"
        left.remove(fitting[0])
    assert left == [], f"more than {patterns}"


def _check_afterwards(world: World, run: Run, cell: Cell) -> None:
    """No thread but a deaf one is left; what that still says is dropped; and the five checks."""
    pool = world.server.main.engine.pool
    left = (0, cell.expected.abandoned)
    wait_until(lambda: (pool.busy, pool.abandoned) == left, "the threads of all that was stopped")
    before = all_events(run)
    cell.kind.let_go(world, cell.phase)
    wait_until(lambda: (pool.busy, pool.abandoned) == (0, 0), "the threads that were left behind")
    assert all_events(run) == before
    if cell.expected.abandoned:
        assert LATE not in str(before)
    calls = world.model_calls()
    five_checks(run, world.models, world.key)
    assert world.model_calls() == calls + 1  # that of the next message


def _seconds_after_stop(world: World, event: Event) -> float:
    return datetime.fromisoformat(event["at"]).timestamp() - world.stopped_at


# -- a limit of the call's own -----------------------------------------------------------------


@_params(*(cell for cell in CELLS if cell.is_own_limit))
def test_the_limit_of_a_call_ends_the_call_in_time_and_not_the_turn(world: World, cell: Cell) -> None:
    with cell.kind.peer(world, cell.phase):
        with cell.kind.held(world, cell.phase) as run:
            world.stopped_at = time.time()
            bring_forward(LIMIT_MS)
        assert run.wait_parked() == "awaiting_input"
        (result,) = of_type(run, "tool_result")
        assert _seconds_after_stop(world, result) < BOUND_S
        assert (result["is_error"], f"{LIMIT_MS / 1000:g} s" in result["content"]) == (True, True)
        assert [of_type(run, "stop_requested"), len(of_type(run, "turn_completed"))] == [[], 1]
        assert world.model_calls() == cell.expected.model_calls + 1  # the model has read it
        assert run.transcript()[-1]["content"] == "t1 t2 "
        cell.kind.check_world(world, run, cell.phase, cell.stop)
        _check_afterwards(world, run, cell)
