"""The documented stop, sentence by sentence: the request token, its registry, and what a 499 does."""

import threading
from typing import Any

import pytest

from core.agent.agent import Agent, Reply
from core.cancellation import GoalCancelledException
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, start_plan, start_silent
from tests.support.race_kit import requests_of
from tests.support.servers import LocalServer

BEFORE_HEADERS = {"name": "silent"}
IN_THE_STREAM = {"name": "trickle", "tokens": 2000, "interval_ms": 20}
both_answers = pytest.mark.parametrize("answer", [BEFORE_HEADERS, IN_THE_STREAM], ids=["status 499", "a frame"])


def _agent(local: LocalServer) -> Agent:
    agent: Agent = local.main.agents["default"]
    return agent


def _lines(options: dict[str, Any], key: str) -> str:
    return script(options["name"], key=key, **{name: value for name, value in options.items() if name != "name"})


def _cancel_at_gateway(models: ModelServer, key: str, options: dict[str, Any]) -> None:
    """As an operator does it at the gateway, once the request is there."""
    models.wait_open(1, key=key)
    if options is IN_THE_STREAM:
        models.wait_tokens(1, key=key)
    token = models.calls(key=key)[0].token
    assert token is not None
    assert models.cancel(token) == "cancelled"


# -- the token --------------------------------------------------------------------------------------


def test_an_agent_cancels_by_naming_the_request_token_that_went_with_the_request(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    assert requests_of(_agent(local)) == [models.calls(key=key)[0].token]
    _agent(local).cancel_llm_request()
    (call,) = models.wait_asked(1, key=key)
    assert call.close_reason == "cancelled"
    run.wait_parked()
    five_checks(run, models, key)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        (script("trickle", tokens=2, interval_ms=1), "success"),
        (script("error", status=400), "failure"),
        (script("silent"), "stop"),
        (script("silent"), "499"),
    ],
    ids=["success", "failure", "stop", "499"],
)
def test_a_token_is_registered_while_its_request_runs_and_removed_in_every_ending(
    local: LocalServer, models: ModelServer, key: str, line: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = _agent(local)
    registered: list[list[str]] = []
    original = agent._provider.stream

    def stream(request: Any, call: Any) -> Any:
        registered.append([call.token, *requests_of(agent)])
        return original(request, call)

    monkeypatch.setattr(agent._provider, "stream", stream)
    run = local.api().start(f"{line} key={key}")
    if how in ("stop", "499"):
        models.wait_open(1, key=key)
        token = models.calls(key=key)[0].token or ""
        run.cancel() if how == "stop" else models.cancel(token)
    run.wait_parked()
    ((token, *in_flight),) = registered
    assert in_flight == [token]
    assert requests_of(agent) == []


# -- 499 ---------------------------------------------------------------------------------------------------


def test_the_sentinel_of_a_499_is_no_ordinary_exception() -> None:
    assert issubclass(GoalCancelledException, BaseException)
    assert not issubclass(GoalCancelledException, Exception)


@both_answers
def test_a_499_makes_the_goal_cancelled_and_cancels_its_unstarted_dependents_only(
    local: LocalServer, models: ModelServer, key: str, answer: dict[str, Any]
) -> None:
    other = script("trickle", tokens=2000, interval_ms=20, key=f"{key}-other")
    run = start_plan(
        local.api(),
        goal("hit", _lines(answer, key)),
        goal("waits", script("trickle", key=key), "hit"),
        goal("waits too", script("trickle", key=key), "waits") | {"id": "waits_too"},
        goal("beside", other),
    )
    models.wait_open(1, key=f"{key}-other")
    _cancel_at_gateway(models, key, answer)
    run.wait_event("goal_status", goal_id="waits_too", status="CANCELLED")
    goals = run.goals()
    assert [(goals[name]["status"], goals[name]["cause"]) for name in ("hit", "waits", "waits_too")] == [
        ("CANCELLED", "operator"), ("CANCELLED", "dependency"), ("CANCELLED", "dependency"),
    ]  # fmt: skip
    assert goals["beside"]["status"] == "IN_PROGRESS"
    assert run.state == "running"
    run.cancel(wait_ms=30_000)
    assert run.goals()["beside"]["cause"] == "user"
    five_checks(run, models, key)


@both_answers
def test_a_499_raises_the_sentinel_out_of_the_response_path(
    local: LocalServer, models: ModelServer, key: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[BaseException] = []
    agent = _agent(local)
    original = agent.ask

    def ask(*arguments: Any) -> Reply:
        try:
            return original(*arguments)
        except BaseException as error:
            raised.append(error)
            raise

    monkeypatch.setattr(agent, "ask", ask)
    run = local.api().start(_lines(answer, key))
    _cancel_at_gateway(models, key, answer)
    run.wait_parked()
    assert [type(error) for error in raised] == [GoalCancelledException]
    assert len(models.calls(key=key)) == 1  # it is not tried again


def _careless(agent: Agent, monkeypatch: pytest.MonkeyPatch, caught: list[Exception], asks: list[int]) -> None:
    """Goal code that takes every error for a hiccup and asks again."""
    original = agent.ask

    def ask(*arguments: Any) -> Reply:
        for _ in range(3):
            try:
                asks.append(threading.get_ident())
                return original(*arguments)
            except Exception as error:
                caught.append(error)
        return Reply(["made up, since nothing worked"])

    monkeypatch.setattr(agent, "ask", ask)


@both_answers
def test_a_stop_passes_goal_code_that_catches_every_exception_around_its_model_call(
    local: LocalServer, models: ModelServer, key: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Exception] = []
    asks: list[int] = []
    run = _start(local, models, key, answer, monkeypatch, caught, asks)
    assert run.cancel()["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert (caught, len(asks)) == ([], 1)
    assert run.goals()["answer"]["status"] == "CANCELLED"
    assert "made up" not in run.transcript()[-1]["content"]
    monkeypatch.undo()
    five_checks(run, models, key)


@both_answers
def test_a_499_passes_goal_code_that_catches_every_exception_around_its_model_call(
    local: LocalServer, models: ModelServer, key: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Exception] = []
    asks: list[int] = []
    run = _start(local, models, key, answer, monkeypatch, caught, asks)
    _cancel_at_gateway(models, key, answer)
    assert run.wait_parked() == "awaiting_input"
    assert (caught, len(asks)) == ([], 1)
    assert run.goals()["answer"]["status"] == "CANCELLED"
    monkeypatch.undo()
    five_checks(run, models, key)


def test_goal_code_that_swallows_even_the_sentinel_gets_no_second_request_through(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = _agent(local)
    original = agent.ask
    swallowed: list[BaseException] = []

    def ask(*arguments: Any) -> Reply:
        for _ in range(3):
            try:
                return original(*arguments)
            except BaseException as error:
                swallowed.append(error)
        return Reply(["made up, since nothing worked"])

    monkeypatch.setattr(agent, "ask", ask)
    run = start_silent(local.api(), models, key)
    run.cancel(wait_ms=30_000)
    assert len(swallowed) == 3
    assert len(models.calls(key=key)) == 1
    assert run.goals()["answer"]["status"] == "CANCELLED"
    assert "made up" not in run.transcript()[-1]["content"]
    monkeypatch.undo()
    five_checks(run, models, key)


def _start(
    local: LocalServer, models: ModelServer, key: str, answer: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch, caught: list[Exception], asks: list[int],
) -> Run:  # fmt: skip
    _careless(_agent(local), monkeypatch, caught, asks)
    run = local.api().start(_lines(answer, key))
    models.wait_open(1, key=key)
    if answer is IN_THE_STREAM:
        models.wait_tokens(1, key=key)
    return run
