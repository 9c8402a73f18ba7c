"""The documented stop, sentence by sentence: the route, the order of cancel and flag, the flag, the chat bot's loop."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from api.auth.jwt_middleware import USER_SESSION_ENDPOINTS
from core.base import InputOutput
from core.base.InputOutput import close_flag, is_stopped, open_flag, plan_is_stopped, set_stopped
from core.base.Main import get_global_plan, post_stopplan_data
from core.cancellation import Level, Scope
from core.engine.stopping import StopAnswer
from core.errors import StoreError
from tests.support.api_client import PATIENCE_S
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, start_plan, start_silent, start_streaming
from tests.support.race_kit import Later, turn_of
from tests.support.servers import REMOTE_TOKEN, LocalServer, gate

SOURCES = Path(__file__).parents[2] / "PythonServer" / "src"


# -- names and places -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "api/v1/session.py", "api/auth/jwt_middleware.py", "core/base/Main.py", "core/base/InputOutput.py",
        "core/extensions/skillsets/ChatBot/ChatBot2.py", "core/provider/provider_http.py",
    ],
)  # fmt: skip
def test_a_documented_file_stands_at_its_path(path: str) -> None:
    assert (SOURCES / path).is_file()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("api.v1.session", "post_stopplan"),
        ("core.base.Main", "post_stopplan_data get_global_plan"),
        ("core.base.InputOutput", "plan_is_stopped set_stopped is_stopped"),
        ("core.plan.plan", "Plan.run Plan.cancel_llm_requests"),
        ("core.plan.goal", "Goal.run Goal.get_active_goals Goal._run_parallel Goal.set_goal_status"),
        (
            "core.plan.goal_status",
            "GoalStatus.NOT_STARTED GoalStatus.IN_PROGRESS GoalStatus.CHILDREN_IN_PROGRESS GoalStatus.COMPLETED "
            "GoalStatus.FAILED GoalStatus.CANCELLED",
        ),
        ("core.agent.agent", "Agent.cancel_llm_request"),
        ("core.cancellation", "GoalCancelledException"),
        ("core.extensions.skillsets.ChatBot.ChatBot2", "ChatBot2"),
    ],
)
def test_a_documented_name_is_where_it_is_documented(module: str, names: str) -> None:
    for name in names.split():
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)


# -- the route ---------------------------------------------------------------------------------


def test_post_stopplan_is_registered_by_the_session_module(local: LocalServer) -> None:
    (rule,) = [rule for rule in local.app.url_map.iter_rules() if rule.rule == "/stopplan"]
    assert "POST" in (rule.methods or ())
    assert local.app.view_functions[rule.endpoint].__module__ == "api.v1.session"


def test_stopplan_is_in_the_user_session_allowlist_and_needs_no_scope(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    assert USER_SESSION_ENDPOINTS["post_stopplan"] == frozenset()
    run = start_silent(local.api(), models, key)
    assert local.api(scope="").post("/stopplan")["stopped"] is True
    assert requests.post(f"{local.url}/stopplan", json={}, timeout=PATIENCE_S).status_code == 401
    five_checks(run, models, key)


def test_stopplan_needs_no_id_and_no_token_of_anything(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    answer = local.api().post("/stopplan", {})
    assert answer["message"] == "Plan stopped successfully"
    assert (answer["run_id"], answer["turn_id"], answer["stopped"]) == (run.id, run.first_turn, True)
    five_checks(run, models, key)


def test_the_remote_session_route_stops_that_session(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    other = start_silent(local.api(), models, f"{key}-other")
    remote = local.api()
    remote.token = REMOTE_TOKEN
    answer = remote.post(f"/sessions/session/{run.session_id}/stop")
    assert (answer["message"], answer["run_id"]) == ("Plan stopped successfully", run.id)
    five_checks(run, models, key)
    assert other.state == "running"
    other.cancel(wait_ms=30_000)


def test_post_stopplan_data_returns_four_values_on_success() -> None:
    answer = StopAnswer("r", "t", True, "stopping", [])
    success, data, error, status_code = post_stopplan_data(lambda: answer)
    assert (success, error, status_code) == (True, None, 200)
    assert data is not None
    assert (data["message"], data["stopped"]) == ("Plan stopped successfully", True)


@pytest.mark.parametrize("failure", [StoreError(), RuntimeError("a fault")])
def test_post_stopplan_data_returns_an_error_if_either_step_raises(failure: Exception) -> None:
    def stop() -> StopAnswer:
        raise failure

    success, data, error, status_code = post_stopplan_data(stop)
    assert (success, data) == (False, None)
    assert error is not None
    assert status_code >= 500


def test_the_answer_comes_before_the_plan_has_unwound(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding:
        assert local.api().post("/stopplan")["stopped"] is True
        unwinding.wait_reached()
        assert run.state == "stopping"
    five_checks(run, models, key)


def test_the_global_plan_is_that_of_the_newest_turn(local: LocalServer, models: ModelServer, key: str) -> None:
    assert get_global_plan(local.main) is None
    runs = [start_silent(local.api(), models, f"{key}-{number}") for number in range(2)]
    newest = local.main.engine.live_turn(runs[1].id)
    assert newest is not None
    assert get_global_plan(local.main) is newest.plan
    for run in runs:
        run.cancel(wait_ms=30_000)
    assert get_global_plan(local.main) is None


def test_without_an_argument_the_global_plan_is_stopped(local: LocalServer, models: ModelServer, key: str) -> None:
    assert post_stopplan_data()[:2] == (True, {"message": "Plan stopped successfully", "stopped": False})
    run = start_silent(local.api(), models, key)
    assert get_global_plan() is get_global_plan(local.main)
    success, data, error, status_code = post_stopplan_data()
    assert (success, error, status_code) == (True, None, 200)
    assert data is not None
    assert data["run_id"] == run.id
    five_checks(run, models, key)


# -- first the requests, then the flag -------------------------------------------------------------


def test_the_requests_are_cancelled_first_and_the_flag_is_set_afterwards(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.scope_closed") as closed, gate("turn.requests_cancelled") as cancelled:
        stop = Later(lambda: local.api().post("/stopplan"))
        closed.wait_reached()
        assert models.calls(key=key)[0].asked_to_cancel_at is None
        with gate("chatbot.before_flag_is_cleared") as unwound:
            closed.open()
            cancelled.wait_reached()
            assert models.calls(key=key)[0].asked_to_cancel_at is not None
            assert plan_is_stopped == [False]
            unwound.wait_reached()
            assert not stop.is_done
            cancelled.open()
            assert stop.result()["stopped"] is True
            assert plan_is_stopped == [True]
    five_checks(run, models, key)


# -- the flag ------------------------------------------------------------------------------------------


@pytest.fixture
def turn_scope() -> Iterator[Scope]:
    """A live plan's scope, entered."""
    scope = Scope.root().open(Level.RUN, "run").open(Level.TURN, "turn")
    open_flag(scope)
    with scope.entered():
        yield scope
    close_flag(scope)


def test_the_flag_is_a_list_of_one_element_and_false_when_nothing_runs() -> None:
    assert InputOutput.plan_is_stopped == [False]


@pytest.mark.usefixtures("turn_scope")
def test_an_imported_reference_to_the_flag_sees_the_change() -> None:
    assert InputOutput.plan_is_stopped is plan_is_stopped
    assert (plan_is_stopped[0], is_stopped()) == (False, False)
    set_stopped(True)
    assert (plan_is_stopped[0], is_stopped()) == (True, True)
    set_stopped(False)
    assert plan_is_stopped[0] is False


# -- the chat bot's loop -----------------------------------------------------------------------------------


def test_the_chat_bot_clears_the_flag_right_after_the_plan_and_goes_on_to_the_next_input(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    with gate("chatbot.before_flag_is_cleared") as before, gate("chatbot.plan_has_run") as after:
        local.api().post("/stopplan")
        before.wait_reached()
        assert plan_is_stopped == [True]
        before.open()
        after.wait_reached()
        assert plan_is_stopped == [False]
    five_checks(run, models, key)  # with the next input


def test_the_updated_plan_is_published_after_a_stop(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    local.api().post("/stopplan")
    events = run.events()
    plans = [event for event in events if event["type"] == "plan_updated"]
    assert [each["status"] for each in plans[-1]["goals"]] == ["CANCELLED"]
    assert plans[-1]["seq"] < next(event["seq"] for event in events if event["type"] == "turn_cancelled")


def test_a_new_plan_starts_with_a_clear_flag(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    run.cancel(wait_ms=30_000)
    with gate("chatbot.before_planning") as planning:
        run.say(script("strict", key=key))
        planning.wait_reached()
        turn = turn_of(local, run)
        with turn.scope.entered():
            assert (plan_is_stopped[0], is_stopped()) == (False, False)
    assert run.wait_parked() == "awaiting_input"
    assert run.transcript()[-1]["content"] == "All messages are in order."


def test_a_stop_leaves_session_chat_and_plan_as_they_are(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_streaming(local.api(), models, key)
    local.api().post("/stopplan")
    assert run.wait_parked() == "awaiting_input"
    user, assistant = run.transcript()
    assert user["role"] == "user"
    assert assistant["content"].startswith("t1 ")
    assert list(run.goals()) == ["answer"]
    assert [each["run_id"] for each in local.api().get("/v1/runs")["runs"]] == [run.id]
    assert local.api().get("/readyz")
    five_checks(run, models, key)


def test_a_stop_keeps_later_goals_from_starting(local: LocalServer, models: ModelServer, key: str) -> None:
    slow = script("nonstream", delay_ms=60_000, key=key)
    run = start_plan(local.api(), goal("a", slow), goal("b", slow, "a"), goal("c", slow, "b"))
    models.wait_open(1, key=key)
    local.api().post("/stopplan")
    assert run.wait_parked() == "awaiting_input"
    assert len(models.calls(key=key)) == 1
    assert {name: each["started_at"] is None for name, each in run.goals().items()} == {
        "a": False, "b": True, "c": True,
    }  # fmt: skip
    five_checks(run, models, key)
