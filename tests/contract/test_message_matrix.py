"""Every mode of a message, times every moment in which it may come: its answer, its one fate, and what the model saw.

The columns are in ``tests/support/message_moments.py``.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.message_fates import Fate, bare, end_of, fate_of, first_with, message_of, shape, wait_settled
from tests.support.message_matrix import MODES, Cell, Way, World
from tests.support.message_moments import MOMENTS, fields_of_message
from tests.support.model_server import ModelServer
from tests.support.plans import all_events
from tests.support.servers import LocalServer
from tests.support.steering import check_quiet, talking_server

CELLS = [Cell(moment, mode, provider) for moment in MOMENTS for mode in MODES for provider in moment.providers]

#: Where each provider is reached.
PATHS = {"de2generator": "", "openai": "/v1", "anthropic": ""}


@pytest.fixture(scope="module")
def servers(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LocalServer]]:
    """One server a provider, for all cells."""
    with ExitStack() as stack:
        started: dict[str, LocalServer] = {}

        def server_of(provider: str) -> LocalServer:
            if provider not in started:
                folder, url = tmp_path_factory.mktemp(f"messages-{provider}"), models.url + PATHS[provider]
                server = talking_server(folder, url, llm_provider=provider, llm_api_key="none")
                started[provider] = stack.enter_context(server)
            return started[provider]

        yield server_of


@pytest.fixture
def world(servers: Callable[[str], LocalServer], cell: Cell, models: ModelServer, key: str) -> Iterator[World]:
    """A user who has nothing yet; nothing may be left of the cell."""
    server = servers(cell.provider)
    found = World(server, models, key, server.api(key), cell.provider)
    yield found
    found.api.close()
    check_quiet(server)


def test_every_mode_has_a_place_in_every_moment() -> None:
    assert all(tuple(moment.expected) == MODES for moment in MOMENTS)
    assert len({str(cell) for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_message_has_the_answer_and_the_one_fate_of_its_mode_and_its_moment(world: World, cell: Cell) -> None:
    text = fields_of_message(cell.moment, world.key, cell.mode)
    with cell.moment.held(world, cell.mode) as run:
        sent = run.say(text, mode=cell.mode)
        _check_answer(sent, run, cell)
    wait_settled(run, sent["message_id"])
    assert run.state == "awaiting_input"
    _check_fate(run, sent, cell)
    _check_first_turn(run, cell)
    _check_requests(world, run, text, cell)
    cell.moment.check(world, run, cell.mode)
    five_checks(run, world.models, world.key)


def _check_answer(sent: dict[str, object], run: Run, cell: Cell) -> None:
    """What is known at once; as long as the moment lasts, what waits is in the inbox."""
    disposition = cell.expected.disposition
    assert sent["disposition"] == disposition
    assert ("receipt" in sent) == (disposition == "interrupted")
    assert ("turn_id" in sent) == (disposition != "queued")
    if disposition in ("steered", "redirected", "interrupted"):
        assert sent["turn_id"] == run.first_turn
    if disposition == "queued" or (disposition == "steered" and cell.moment.name != "just ending"):
        assert message_of(run, str(sent["message_id"]))["state"] == "queued"
        assert [each["message_id"] for each in run.inbox()] == [sent["message_id"]]


def _check_fate(run: Run, sent: dict[str, object], cell: Cell) -> None:
    message_id = str(sent["message_id"])
    fate = fate_of(run, message_id)
    events = all_events(run)
    queued = [event for event in events if event["type"] == "message_queued"]
    if cell.expected.way is Way.STARTS:
        assert queued == []
        assert fate == Fate("delivered", str(sent["turn_id"]), 0)
        return
    assert [event["message_id"] for event in queued] == [message_id]
    if cell.expected.way is Way.GOES_IN:
        assert fate == Fate("delivered", run.first_turn, 1)
        assert run.view()["turn_id"] == run.first_turn
        (delivered,) = [event for event in events if event["type"] == "message_delivered"]
        assert len(delivered["goals"]) == (0 if cell.moment.planning == "auto" and cell.mode == "redirect" else 1)
    else:
        assert fate == Fate("delivered", run.view()["turn_id"], 0)
        assert fate.turn_id != run.first_turn


def _check_first_turn(run: Run, cell: Cell) -> None:
    end = end_of(run, run.first_turn)
    is_replaced = cell.expected.way is Way.REPLACES
    assert end["type"] == ("turn_cancelled" if is_replaced else cell.expected.end)
    if is_replaced:
        assert (end["cause"], end["reason"]) == ("user", "interrupted by a message")
    last = run.transcript()[-1]
    assert (last["role"], last.get("stopped"), last.get("failed")) == ("assistant", None, None)
    if cell.expected.way is Way.GOES_IN:  # a correction is not shown as the user's stop
        assert not any(each.get("stopped") for each in run.transcript())


def _check_requests(world: World, run: Run, text: str, cell: Cell) -> None:
    calls = world.models.calls(key=world.key)
    assert len(calls) == cell.expected.calls
    assert [call for call in calls if call.status not in (200, 499, None)] == [], "the strict server has refused one"
    request = first_with(calls, text)
    assert shape(request.messages) == cell.expected.shape
    if cell.moment.is_plain:
        said = bare(run.transcript())
        assert bare(request.messages) == said[: len(request.messages) - 1]
