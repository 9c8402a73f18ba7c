"""The documented paths and names exist, where the callers of the server expect them."""

import pytest

from core.base import InputOutput
from core.base.Main import Main, post_stopplan_data
from core.cancellation import Cancelled, GoalCancelledException
from core.plan.goal_status import GoalStatus
from tests.architecture.sources import SRC, names_in

DOCUMENTED = {
    "api/v1/session.py": ["post_stopplan", "post_session_stop"],
    "api/auth/jwt_middleware.py": ["USER_SESSION_ENDPOINTS"],
    "core/base/Main.py": ["post_stopplan_data", "get_global_plan"],
    "core/base/InputOutput.py": ["plan_is_stopped", "set_stopped", "is_stopped"],
    "core/extensions/skillsets/ChatBot/ChatBot2.py": ["ChatBot2"],
    "core/plan/plan.py": ["Plan.run", "Plan.plan_goal", "Plan.cancel_llm_requests"],
    "core/plan/goal.py": ["Goal.run", "Goal.get_active_goals", "Goal._run_parallel", "Goal.set_goal_status"],
    "core/plan/goal_status.py": [
        f"GoalStatus.{name}"
        for name in ("NOT_STARTED", "IN_PROGRESS", "CHILDREN_IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED")
    ],
    "core/agent/agent.py": ["Agent.cancel_llm_request"],
    "core/provider/provider_http.py": ["stream_http"],
    "core/cancellation.py": ["GoalCancelledException"],
}


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in DOCUMENTED.items() for name in names])
def test_a_documented_name_is_at_its_documented_path(path: str, name: str) -> None:
    assert name in names_in(SRC / path)


def test_the_documented_statuses_are_all_there_are() -> None:
    assert {status.name for status in GoalStatus} == {
        name.partition(".")[2] for name in DOCUMENTED["core/plan/goal_status.py"]
    }


def test_the_flag_is_a_list_that_imported_references_share() -> None:
    assert InputOutput.plan_is_stopped == [False]


def test_a_cancelled_goal_passes_an_except_exception() -> None:
    assert issubclass(GoalCancelledException, Cancelled)
    assert issubclass(GoalCancelledException, BaseException)
    assert not issubclass(GoalCancelledException, Exception)


def test_post_stopplan_data_gives_four_values() -> None:
    answer = post_stopplan_data(lambda: None)
    assert answer == (True, {"message": "Plan stopped successfully", "stopped": False}, None, 200)
    assert callable(Main.stop_plan)
