"""Every phase of a turn, times every way to stop it, times interactive and batch: each cell with forced order.

The rows that need no phase (stopping already, parked, over, foreign) are in ``test_stop_table_rows.py``. Further
replicas are not built yet, so their cells are not here.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from core.provider.backoff import RetryPolicy
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.going_back import NOTE, go_back
from tests.support.model_server import ModelServer
from tests.support.plans import all_events
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer
from tests.support.stop_table import CAREFUL, PHASES, Phase, Scene

pytestmark = pytest.mark.spread(3)


@pytest.fixture(scope="module")
def shared(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """One server for the whole table, with tools, and in no hurry to repeat a failed call."""
    folder = tmp_path_factory.mktemp("table")
    agents = folder / "agents.json"
    agents.write_text(json.dumps([CAREFUL]))
    tools = ("shell", "delegate", "ask_user")
    # So few tokens that only the histories of the phase "compacting" are summed up.
    with LocalServer(folder, models.url, tools_allowed=tools, agents_file=agents, compact_at_tokens=300) as server:
        server.main.agents["default"]._retries = RetryPolicy(base_s=60)
        yield server


@pytest.fixture
def scene(shared: LocalServer, models: ModelServer, key: str) -> Iterator[Scene]:
    """A user who has nothing yet, so that ``/stopplan`` means the run of the test; nothing may be left of it."""
    api = shared.api(key)
    yield Scene(api, models, key)
    api.close()
    check_nothing_left(shared)


each_phase = pytest.mark.parametrize("phase", PHASES, ids=str)
each_kind = pytest.mark.parametrize("interactive", [True, False], ids=["interactive", "batch"])


def _check_stopped(run: Run, phase: Phase, scene: Scene, receipt: list[dict[str, Any]]) -> None:
    """The first turn ended once, as stopped by the user; what was found is in the receipt; nothing was asked after."""
    of_turn = [event for event in all_events(run) if event.get("turn_id") == run.first_turn]
    kinds = [event["type"] for event in of_turn]
    assert (kinds.count("stop_requested"), kinds[-1]) == (1, "turn_cancelled")
    assert (of_turn[-1]["cause"], of_turn[-1]["receipt"]) == ("user", receipt)
    found = {item["kind"] for item in receipt}
    assert phase.found in found if phase.found else not found
    assert all(item["outcome"] is not None for item in receipt)
    assert len([call for call in scene.models.calls(key=scene.key) if call.script != "strict"]) == phase.calls


def _final_receipt(run: Run) -> list[dict[str, Any]]:
    (entry,) = run.api.get(f"{run.path}/receipts")["receipts"]
    assert entry["turn_id"] == run.first_turn
    receipt: list[dict[str, Any]] = entry["receipt"]
    return receipt


@each_phase
def test_a_stop_of_an_interactive_run_parks_it(scene: Scene, phase: Phase) -> None:
    with phase.enter(scene) as run:
        assert run.state == phase.state
        answer = run.cancel(reason="enough", if_turn=run.first_turn)
        assert (answer["stopped"], answer["turn_id"]) == (True, run.first_turn)
        assert answer["parked"] is (answer["state"] == "awaiting_input")
        assert run.state in ("stopping", "awaiting_input")
    assert run.wait_parked() == "awaiting_input"
    _check_stopped(run, phase, scene, _final_receipt(run))
    five_checks(run, scene.models, scene.key)


@each_phase
def test_a_stop_of_a_batch_run_is_refused_and_changes_nothing(scene: Scene, phase: Phase) -> None:
    with phase.enter(scene, interactive=False) as run:
        assert run.cancel(expect=409)["code"] == "not_interactive"
        assert run.cancel(expect=409, if_turn=run.first_turn, inbox="drop")["code"] == "not_interactive"
        assert run.state == phase.state
        assert run.terminate()["stopped"] is True
    assert run.wait_parked() == "cancelled"
    requested = [event for event in all_events(run) if event["type"] == "stop_requested"]
    assert [event["ends_run"] for event in requested] == [True]  # of the terminate alone
    five_checks(run, scene.models, scene.key)


@each_phase
def test_a_stop_that_says_how_a_batch_run_goes_on_ends_the_turn_and_not_the_run(scene: Scene, phase: Phase) -> None:
    with phase.enter(scene, interactive=False) as run:
        answer = run.cancel(continue_with=scene.line("strict"))
        assert (answer["stopped"], answer["turn_id"], answer["parked"]) == (True, run.first_turn, False)
    assert run.wait_parked() == "completed"
    _check_stopped(run, phase, scene, _final_receipt(run))
    events = all_events(run)
    started = [event for event in events if event["type"] == "turn_started"]
    assert [event["input"] for event in started[1:]] == [scene.line("strict")]
    assert [event["type"] for event in events[-2:]] == ["turn_completed", "run_completed"]
    assert events[-2]["turn_id"] == started[1]["turn_id"]
    assert run.transcript()[-1]["content"] == "All messages are in order."
    five_checks(run, scene.models, scene.key)


@each_kind
@each_phase
def test_a_terminate_ends_the_turn_and_the_run(scene: Scene, phase: Phase, interactive: bool) -> None:
    with phase.enter(scene, interactive=interactive) as run:
        answer = run.terminate(reason="enough")
        assert (answer["stopped"], answer["turn_id"], answer["parked"]) == (True, run.first_turn, False)
        assert run.state in ("stopping", "cancelled")
    assert run.wait_parked() == "cancelled"
    _check_stopped(run, phase, scene, _final_receipt(run))
    assert [event["type"] for event in all_events(run)[-2:]] == ["turn_cancelled", "run_cancelled"]
    assert run.cancel(expect=409)["code"] == "run_is_over"
    five_checks(run, scene.models, scene.key)


@each_kind
@each_phase
def test_stopplan_parks_an_interactive_run_and_ends_a_batch_run(
    scene: Scene, phase: Phase, interactive: bool
) -> None:
    with phase.enter(scene, interactive=interactive) as run:
        answer = scene.api.post("/stopplan", {})
        assert answer["message"] == "Plan stopped successfully"
        assert (answer["stopped"], answer["run_id"], answer["turn_id"]) == (True, run.id, run.first_turn)
    assert run.wait_parked() == ("awaiting_input" if interactive else "cancelled")
    _check_stopped(run, phase, scene, _final_receipt(run))
    assert scene.api.post("/stopplan", {}) == {"message": "Plan stopped successfully", "stopped": False}
    five_checks(run, scene.models, scene.key)


@each_phase
def test_a_turn_that_was_stopped_in_any_phase_can_be_resumed_and_stopped_again(scene: Scene, phase: Phase) -> None:
    with phase.enter(scene) as run:
        run.cancel()
    run.wait_parked()
    turn_id = go_back(run, "resume")["turn_id"]
    again = run.cancel(wait_ms=30_000)
    assert again["turn_id"] == turn_id
    assert again["parked"] is True  # stopped anew, or at its end already where nothing held it up
    assert [each["role"] for each in run.transcript() if each["turn_id"] == turn_id][:2] == ["user", "assistant"]
    assert {each["turn_id"] for each in run.transcript()} <= {turn_id, None}
    five_checks(run, scene.models, scene.key)


@each_phase
def test_a_turn_that_was_stopped_in_any_phase_can_be_rolled_back(scene: Scene, phase: Phase) -> None:
    with phase.enter(scene) as run:
        run.cancel()
    run.wait_parked()
    assert go_back(run, "rollback")["rolled_back"] is True
    handed_in = run.transcript()
    assert [each for each in handed_in if each["turn_id"] is not None] == []
    five_checks(run, scene.models, scene.key)
    request = scene.models.calls(key=scene.key)[-1].messages
    assert handed_in or [message["role"] for message in request] == ["system", "user"]
    assert NOTE not in str(request)
