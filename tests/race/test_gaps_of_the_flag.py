"""What the documented stop leaves open, and how it is closed, the order of events forced: its flag, and failures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from core.agent.agent import Reply
from core.base.InputOutput import is_stopped, plan_is_stopped, set_stopped
from core.plan.plan import Plan
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, start_plan, start_silent
from tests.support.race_kit import Later, Switch, break_store, requests_of, turn_of
from tests.support.servers import LocalServer, gate

# -- 1. between cancel and flag ---------------------------------------------------------------


@pytest.mark.parametrize("point", ["agent.before_request", "scheduler.before_goal_starts", "model_call.before_sent"])
def test_a_call_that_would_start_between_cancel_and_flag_never_reaches_the_model_server(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    with gate(point) as starting, gate("turn.requests_cancelled") as between:
        run = local.api().start(script("trickle", key=key))
        starting.wait_reached()
        stop = Later(lambda: local.api().post("/stopplan"))
        between.wait_reached()
        assert not any(requests_of(agent) for agent in local.main.agents.values()) or point == "model_call.before_sent"
        starting.open()
        assert run.wait_event("goal_status", status="CANCELLED")["cause"] == "user"
        assert plan_is_stopped == [False]
        between.open()
        assert stop.result()["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert models.calls(key=key) == []
    five_checks(run, models, key)


def test_a_goal_released_between_cancel_and_flag_does_not_start(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = local.main.agents["default"]
    at_end = Switch()
    original: Callable[..., Reply] = agent.ask

    def ask(*arguments: Any) -> Reply:
        reply = original(*arguments)
        at_end.hold()
        return reply

    monkeypatch.setattr(agent, "ask", ask)
    run = start_plan(
        local.api(),
        goal("first", script("trickle", tokens=1, key=key)),
        goal("second", script("silent", key=key), "first"),
    )
    at_end.wait_reached()
    with gate("turn.requests_cancelled") as between:
        stop = Later(lambda: local.api().post("/stopplan"))
        between.wait_reached()
        at_end.open()
        run.wait_event("goal_status", goal_id="second", status="CANCELLED")
        between.open()
        stop.result()
    run.wait_parked()
    assert len(models.calls(key=key)) == 1
    monkeypatch.undo()
    five_checks(run, models, key)


# -- 2. the flag is process-wide --------------------------------------------------------------


def test_a_stop_for_one_plan_does_not_stop_another(local: LocalServer, models: ModelServer, key: str) -> None:
    first, second = (start_silent(local.api(f"user{number}"), models, f"{key}-{number}") for number in (1, 2))
    with gate("chatbot.before_flag_is_cleared") as unwound:
        first.api.post("/stopplan")
        unwound.wait_reached()
        assert plan_is_stopped == [True]
        other = local.main.engine.live_turn(second.id)
        assert other is not None
        with other.scope.entered():
            assert is_stopped() is False
        assert second.state == "running"
    five_checks(first, models, f"{key}-1")
    assert second.state == "running"
    second.cancel(wait_ms=30_000)
    five_checks(second, models, f"{key}-2")


def test_a_stop_after_the_end_of_a_turn_does_not_kill_the_next(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(script("strict", key=key))
    run.wait_parked()
    assert run.api.post("/stopplan") == {"message": "Plan stopped successfully", "stopped": False}
    assert run.cancel()["stopped"] is False
    assert run.cancel(expect=409, if_turn="t_another")["code"] == "turn_is_over"
    five_checks(run, models, key)


def test_a_late_stop_with_if_turn_lets_the_next_turn_go_on(local: LocalServer, models: ModelServer, key: str) -> None:
    run = local.api().start(script("strict", key=key))
    run.wait_parked()
    run.say(script("silent", key=key))
    models.wait_open(1, key=key)
    assert run.cancel(expect=409, if_turn=run.first_turn)["code"] == "turn_is_over"
    assert run.state == "running"
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)


def test_clearing_the_flag_never_un_cancels_a_turn(local: LocalServer, models: ModelServer, key: str) -> None:
    with gate("agent.before_request") as asking:
        run = local.api().start(script("trickle", key=key))
        asking.wait_reached()
        turn = turn_of(local, run)
        run.cancel()
        set_stopped(False, turn.scope)
        with turn.scope.entered():
            assert (plan_is_stopped[0], is_stopped()) == (False, True)
    assert run.wait_parked() == "awaiting_input"
    assert models.calls(key=key) == []
    five_checks(run, models, key)


@pytest.mark.parametrize("point", ["engine.accepted", "engine.claimed", "engine.began", "chatbot.before_planning"])
def test_a_stop_after_the_message_was_accepted_and_before_the_plan_runs_counts(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    first = local.api().start(script("strict", key=key))
    first.wait_parked()
    with gate(point) as before:
        sent = Later(lambda: local.api().post(f"{first.path}/input", {"text": script("silent", key=key)}, expect=202))
        before.wait_reached()
        assert local.api().post("/stopplan")["stopped"] is True
        before.open()
        turn_id = sent.result()["turn_id"]
        assert first.wait_event("turn_cancelled")["turn_id"] == turn_id
    assert len(models.calls(key=key)) == 1
    five_checks(first, models, key)


def test_the_documented_helpers_act_on_the_plan_of_the_goal_that_calls_them(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = local.main.agents["default"]
    original: Callable[..., Reply] = agent.ask
    inside = Switch()
    seen: list[bool] = []

    def ask(*arguments: Any) -> Reply:
        if "act" in arguments[0]().messages[-1]["content"]:
            inside.hold()
            seen.append(is_stopped())
            set_stopped(True)
            seen.append(is_stopped())
        return original(*arguments)

    monkeypatch.setattr(agent, "ask", ask)
    acting = local.api("first").start("act")
    inside.wait_reached()
    newest = start_silent(local.api("second"), models, key)  # the global plan is this one's
    inside.open()
    assert acting.wait_parked() == "awaiting_input"
    assert seen == [False, True]
    assert acting.goals()["answer"]["cause"] == "user"
    assert newest.state == "running"
    assert [call.key for call in models.calls(key=key, only_open=True)] == [key]
    newest.cancel(wait_ms=30_000)
    monkeypatch.undo()
    five_checks(acting, models, f"{key}-next")


@pytest.mark.parametrize("is_interactive", [True, False])
def test_a_goal_that_stops_its_own_plan_ends_the_turn_as_a_stop_would_and_others_may_join(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch, is_interactive: bool
) -> None:
    agent = local.main.agents["default"]
    original: Callable[..., Reply] = agent.ask

    def ask(*arguments: Any) -> Reply:
        if arguments[0]().messages[-1]["content"] == "stop yourself":
            set_stopped(True)
        return original(*arguments)

    monkeypatch.setattr(agent, "ask", ask)
    with gate("turn.before_finish") as unwinding:
        run = local.api().start("stop yourself", interactive=is_interactive)
        unwinding.wait_reached()
        assert run.api.post("/stopplan")["stopped"] is True
    assert run.wait_parked() == ("awaiting_input" if is_interactive else "cancelled")
    assert run.wait_event("turn_cancelled")["cause"] == "user"
    monkeypatch.undo()
    five_checks(run, models, key, is_batch=not is_interactive)


# -- 3. a failing gateway, a failing server ---------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "detail"), [("deaf", "did not answer"), ("refuse", "500")], ids=["no answer", "an error"]
)
def test_the_flag_is_set_whatever_the_gateway_does_and_the_receipt_says_how_each_call_ended(
    local: LocalServer, models: ModelServer, key: str, manner: str, detail: str
) -> None:
    run = start_plan(
        local.api(),
        goal("bad", script("silent", cancel=manner, key=key)),
        goal("good", script("silent", key=key)),
    )
    models.wait_open(2, key=key)
    with gate("chatbot.before_flag_is_cleared") as unwound:
        assert run.api.post("/stopplan")["stopped"] is True
        unwound.wait_reached()
        assert plan_is_stopped == [True]
    receipt = run.wait_event("turn_cancelled")["receipt"]
    calls = {item["goal_id"]: item for item in receipt if item["kind"] == "model_call"}
    assert (calls["good"]["outcome"], calls["bad"]["outcome"]) == ("cancelled", "aborted")
    assert detail in calls["bad"]["detail"]
    models.wait_open(0, key=key)
    five_checks(run, models, key)


def test_a_gateway_that_is_gone_does_not_keep_the_stop_from_holding(tmp_path: Path) -> None:
    with ModelServer() as gateway, LocalServer(tmp_path, gateway.url) as local:
        run = local.api().start(script("busy", retry_after_s=300))
        run.wait_event("retry")
        gateway.stop()
        answer = run.cancel(wait_ms=30_000)
        assert (answer["stopped"], answer["parked"]) == (True, True)
        assert [item["outcome"] for item in answer["receipt"] if item["kind"] == "wait"] == ["cancelled"]
        port = urlsplit(gateway.url).port or 0
        with ModelServer(strict=True, port=port) as back:
            five_checks(run, back)


def test_an_internal_error_in_cancelling_gives_500_and_the_stop_holds_all_the_same(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    run = start_silent(local.api(), models, key)
    monkeypatch.setattr(Plan, "cancel_llm_requests", broken)
    with gate("chatbot.before_flag_is_cleared") as unwound:
        answer = run.api.post("/stopplan", expect=500)
        assert answer["code"] == "internal_error"
        assert "a fault of ours" not in str(answer)
        unwound.wait_reached()
        assert plan_is_stopped == [True]
    assert run.wait_parked() == "awaiting_input"
    assert run.wait_event("turn_cancelled")["cause"] == "user"
    monkeypatch.undo()
    five_checks(run, models, key)


@pytest.mark.parametrize("route", ["/stopplan", "cancel", "terminate"])
def test_a_stop_that_cannot_be_recorded_gives_500_with_the_receipt_and_holds(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding:
        break_store(monkeypatch, local.main.writer)
        answer = run.api.post(route if route == "/stopplan" else f"{run.path}/{route}", expect=500)
        assert (answer["code"], answer["run_id"], answer["stopped"]) == ("stop_not_recorded", run.id, True)
        assert [item["outcome"] for item in answer["receipt"]] == ["cancelled"]
        models.wait_open(0, key=key)
        unwinding.wait_reached()
        monkeypatch.undo()
    assert run.wait_parked() == ("cancelled" if route == "terminate" else "awaiting_input")
    assert run.wait_event("turn_cancelled")["cause"] == "user"
    five_checks(run, models, key)


def test_a_second_stop_while_nothing_can_be_recorded_gets_the_same_receipt_at_once(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_silent(local.api(), models, key)
    break_store(monkeypatch, local.main.writer)
    with gate("engine.before_final_write") as finished:
        first = run.api.post(f"{run.path}/cancel", expect=500)
        finished.wait_reached()
        second = run.api.post(f"{run.path}/cancel", expect=500)
        assert (second["code"], second["receipt"]) == ("stop_not_recorded", first["receipt"])
        monkeypatch.undo()
    assert run.wait_parked() == "awaiting_input"
    five_checks(run, models, key)
