"""A stop in every phase of a model call, over real sockets, against a real server process."""

import time

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, start_plan
from tests.support.servers import ServerProcess

#: What each way of cancelling is called in a receipt.
AGREED, CUT = "cancelled", "aborted"


def _stop(run: Run) -> float:
    stopped_at = time.time()
    answer = run.cancel()
    assert answer["stopped"] is True
    return stopped_at


def test_a_stop_in_the_middle_of_a_stream_closes_it_and_at_most_two_more_tokens_are_written(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("trickle", tokens=400, interval_ms=50, key=key))
    models.wait_tokens(10, key=key)
    stopped_at = _stop(run)
    (call,) = models.wait_closed(1, key=key)
    assert call.closed_at is not None
    assert call.closed_at - stopped_at < 0.5
    assert call.tokens_after(stopped_at) <= 2
    five_checks(run, models, key)


def test_a_stop_in_the_first_of_three_chained_goals_keeps_the_others_from_starting(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    prompt = script("nonstream", delay_ms=5000, key=key)
    chain = (goal("first", prompt), goal("second", prompt, "first"), goal("third", prompt, "second"))
    run = start_plan(any_server.api(), *chain)
    models.wait_open(1, key=key)
    stopped_at = _stop(run)
    run.wait_parked()
    (call,) = models.wait_closed(1, key=key)
    assert call.closed_at is not None
    assert call.closed_at - stopped_at < 0.5
    goals = run.goals(run.first_turn)
    assert {each["status"] for each in goals.values()} == {"CANCELLED"}
    assert [goals[name]["started_at"] for name in ("second", "third")] == [None, None]
    outcomes = {item["id"]: item["outcome"] for item in _final_receipt(run) if item["kind"] == "goal"}
    assert outcomes == {"first": "cancelled", "second": "not_started", "third": "not_started"}
    five_checks(run, models, key)


@pytest.mark.parametrize(
    "line",
    [("nonstream", {}), ("silent", {}), ("silent", {"headers": 1}), ("prefill", {}), ("prefill", {"headers": 1})],
    ids=["one-whole-reply", "no-answer", "headers-and-no-answer", "prefill", "headers-and-prefill"],
)
def test_a_call_without_a_first_token_is_closed_at_once(
    any_server: ServerProcess, models: ModelServer, key: str, line: tuple[str, dict[str, int]]
) -> None:
    name, options = line
    run = any_server.api().start(script(name, **options, key=key))
    models.wait_open(1, key=key)
    stopped_at = _stop(run)
    (call,) = models.wait_closed(1, key=key)
    assert call.closed_at is not None
    assert call.closed_at - stopped_at < 0.5
    assert call.tokens_sent == 0
    run.wait_parked()
    assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"
    five_checks(run, models, key)


def test_many_parallel_goals_are_stopped_together(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    prompts = [script(name, tokens=900, key=key) for name in ("silent", "nonstream", "prefill", "trickle")] * 5
    run = start_plan(any_server.api(), *(goal(f"g{number}", prompt) for number, prompt in enumerate(prompts)))
    models.wait_open(len(prompts), key=key)
    stopped_at = _stop(run)
    calls = models.wait_open(0, key=key)
    assert len(calls) == len(prompts)
    assert all(call.closed_at is not None and call.closed_at - stopped_at < 1 for call in calls)
    five_checks(run, models, key)


def test_a_stop_ends_a_wait_that_the_model_server_asked_for_and_no_second_request_is_made(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("busy", retry_after_s=3, key=key))
    retry = run.wait_event("retry")
    assert (retry["wait_ms"], retry["capped"]) == (3000, False)
    asked_at = time.monotonic()
    answer = run.cancel(wait_ms=30_000)
    assert time.monotonic() - asked_at < 1
    assert answer["parked"] is True
    assert {(item["kind"], item["outcome"]) for item in answer["receipt"]} == {("wait", AGREED), ("goal", AGREED)}
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


@pytest.mark.parametrize("seconds", [300_000, 277_403, "9" * 40])
def test_an_absurd_wait_is_capped_shown_and_can_be_stopped(
    any_server: ServerProcess, models: ModelServer, key: str, seconds: int | str
) -> None:
    run = any_server.api().start(script("busy", retry_after_s=seconds, key=key))
    retry = run.wait_event("retry")
    assert (retry["wait_ms"], retry["capped"]) == (60_000, True)
    assert run.cancel(wait_ms=30_000)["parked"] is True
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


@pytest.mark.parametrize(
    ("name", "options", "asked"),
    [
        ("silent", {}, AGREED),
        ("deaf", {"tokens": 900}, CUT),
        ("silent", {"cancel": "deaf"}, CUT),
        ("refuse_cancel", {"tokens": 900}, CUT),
        ("late", {"tokens": 900, "after_ms": 5000}, AGREED),
        ("late", {"tokens": 900, "end": "finish"}, AGREED),
    ],
    ids=["silent", "deaf", "silent-and-deaf", "refuses", "agrees-and-goes-on", "agrees-and-finishes"],
)
def test_whatever_the_model_server_does_the_run_is_parked_in_two_seconds_and_the_receipt_is_true(
    any_server: ServerProcess, models: ModelServer, key: str, name: str, options: dict[str, int | str], asked: str
) -> None:
    run = any_server.api().start(script(name, **options, key=key))
    models.wait_open(1, key=key)
    asked_at = time.monotonic()
    answer = run.cancel(wait_ms=30_000)
    assert time.monotonic() - asked_at < 2
    assert answer["parked"] is True
    is_asked = any_server.environment.get("LLM_PROVIDER") != "openai"
    outcomes = [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"]
    assert outcomes == [asked if is_asked else CUT]
    assert "late" not in run.transcript()[-1]["content"]
    assert "still" not in run.transcript()[-1]["content"]
    five_checks(run, models, key)


def test_a_stop_while_the_plan_is_being_made_leaves_no_goal_and_no_further_call(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("silent", on="plan", key=key), planning="auto")
    models.wait_open(1, key=key)
    _stop(run)
    run.wait_parked()
    (call,) = models.wait_closed(1, key=key)
    assert call.must_call is not None
    assert run.goals(run.first_turn) == {}
    events = five_checks(run, models, key)
    of_turn = [event["type"] for event in events if event.get("turn_id") == run.first_turn]
    assert "goal_status" not in of_turn


def _final_receipt(run: Run) -> list[dict[str, object]]:
    receipt: list[dict[str, object]] = run.api.get(f"{run.path}/receipts")["receipts"][-1]["receipt"]
    return receipt
