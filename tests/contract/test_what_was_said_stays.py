"""Resuming a turn and stopping again loses nothing of what was said, however early the stop comes."""

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.going_back import HalfDone, go_back
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, seen_at, start_plan
from tests.support.servers import LocalServer, ServerProcess, gate


@pytest.fixture
def half(key: str) -> HalfDone:
    return HalfDone(key, tokens=4000)


def _stop_half_way(local: LocalServer, models: ModelServer, half: HalfDone) -> tuple[Run, str]:
    run = start_plan(local.api(), *half.goals)
    models.wait_tokens(5, key=f"{half.key}-half")
    run.cancel(wait_ms=30_000)
    said = run.transcript()[-1]["content"]
    assert said.startswith("t1 t2 \n\nt1 t2 t3")
    return run, said


@pytest.mark.parametrize("point", ["engine.claimed", "chatbot.before_planning", "scheduler.before_goal_starts"])
def test_a_resumed_turn_that_is_stopped_before_it_says_anything_keeps_what_the_old_one_had_said(
    local: LocalServer, models: ModelServer, half: HalfDone, point: str
) -> None:
    run, said = _stop_half_way(local, models, half)
    for _ in range(2):  # also the one that resumes the resumed one
        with gate(point) as held:
            go_back(run, "resume")
            held.wait_reached()
            run.cancel()
        run.wait_parked()
        last = run.transcript()[-1]
        assert (last["content"], last["stopped"], last["cause"]) == (said, True, "user")
        assert len(run.transcript()) == 2
    go_back(run, "resume")
    models.wait_tokens(15, key=f"{half.key}-half")
    run.cancel(wait_ms=30_000)
    assert run.transcript()[-1]["content"].startswith("t1 t2 \n\nt1 t2 t3 t4")
    five_checks(run, models, half.key)


def test_a_resumed_turn_that_is_lost_at_once_keeps_what_the_old_one_had_said(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(
        own.api(), goal("a", script("trickle", tokens=3, interval_ms=0, key=key)),
        goal("b", script("trickle", tokens=4000, interval_ms=20, key=f"{key}-b"), "a"),
    )  # fmt: skip
    models.wait_tokens(5, key=f"{key}-b")
    run.cancel(wait_ms=30_000)
    said = run.transcript()[-1]["content"]
    go_back(run, "resume")
    own.kill()
    own.start()
    run = seen_at(own, run)
    run.wait_parked()
    # The old text as a whole, or, if the goal had begun anew before the kill, what it had said since.
    now = run.transcript()[-1]["content"]
    assert now == said or now.startswith("t1 t2 t3 \n\nt1 ")
    five_checks(run, models, key)


def test_a_resumed_turn_whose_agent_is_gone_keeps_what_the_old_one_had_said(
    local: LocalServer, models: ModelServer, half: HalfDone
) -> None:
    run, said = _stop_half_way(local, models, half)
    agents = dict(local.main.agents)
    local.main.agents.clear()
    go_back(run, "resume")
    assert run.wait_parked() == "awaiting_input"
    local.main.agents.update(agents)
    last = run.transcript()[-1]
    assert (last["content"], last.get("failed"), last.get("stopped")) == (said, True, None)
    five_checks(run, models, half.key)
