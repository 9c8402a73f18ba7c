"""What a turn and a run have used: summed over their calls, partial where a call was stopped, null where unknown."""

from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import go_back, of_type
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan, start_silent
from tests.support.servers import LocalServer, ServerProcess, gate

ENDS = ("turn_completed", "turn_cancelled", "turn_failed")


def _end(run: Run, number: int = -1) -> Any:
    """The ``usage`` of a turn's terminal event."""
    return of_type(run, *ENDS)[number]["usage"]


def _check_sum(run: Run) -> None:
    """The sum of each turn is that of its ``usage`` events, and the run's is that of its turns."""
    totals: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for event in all_events(run):
        if event["type"] == "usage":
            calls.append(event)
        elif event["type"] in ENDS:
            assert (event["usage"] or {"calls": 0})["calls"] == len(calls)
            for name in ("input_tokens", "output_tokens"):
                known = [call[name] for call in calls if call[name] is not None]
                assert 0 not in known or not any(call["partial"] for call in calls)
                assert (event["usage"] or {name: None})[name] == (sum(known) if known else None)
            totals += [event["usage"]] if event["usage"] else []
            calls = []
    assert calls == []
    whole = run.view()["usage"]
    if not totals:
        assert whole is None
        return
    assert whole["calls"] == sum(total["calls"] for total in totals)
    for name in ("input_tokens", "output_tokens"):
        known = [total[name] for total in totals if total[name] is not None]
        assert whole[name] == (sum(known) if known else None)


def test_a_completed_turn_tells_what_its_model_server_counted(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api(key).start(say_done(key))
    run.wait_parked()
    used = _end(run)
    assert (used["calls"], used["output_tokens"], used["source"]) == (1, 2, "observed")
    assert used["input_tokens"] > 0
    assert run.view()["usage"] == used
    five_checks(run, models, key)
    _check_sum(run)


def test_a_turn_that_is_stopped_at_ten_tokens_has_used_something(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api(key).start(script("trickle", tokens=4000, interval_ms=20, key=key))
    run.wait_event("text", text="t10 ")
    run.cancel(wait_ms=30_000)
    (call,) = of_type(run, "usage")
    assert (call["partial"], call["source"]) == (True, "estimated")
    assert call["input_tokens"] > 0
    assert call["output_tokens"] > 0
    used = _end(run)
    assert used == {"calls": 1, "source": "estimated"} | {
        name: call[name] for name in ("input_tokens", "output_tokens")
    }
    assert run.view()["usage"] == used
    five_checks(run, models, key)
    _check_sum(run)
    assert run.view()["usage"]["source"] == "mixed"  # the next message was counted by the server


@pytest.mark.parametrize("ending", ["cancel", "terminate"])
def test_what_nobody_knows_is_null_and_never_nothing(api: Api, models: ModelServer, key: str, ending: str) -> None:
    run = start_silent(api, models, key)
    api.post(f"{run.path}/{ending}", {"wait_ms": 30_000})
    used = _end(run)
    assert (used["calls"], used["output_tokens"], used["source"]) == (1, None, "estimated")
    assert used["input_tokens"] > 0
    assert run.view()["usage"] == used
    five_checks(run, models, key)
    _check_sum(run)


def test_every_call_of_a_turn_counts_the_planning_too(api: Api, models: ModelServer, key: str) -> None:
    prompts = [{"id": name, "prompt": say_done(f"{key}-{name}")} for name in "abc"]
    run = api.start(script("plan", plan=prompts, key=key), planning="auto")
    run.wait_parked()
    assert _end(run)["calls"] == 4
    assert run.view()["usage"]["calls"] == 4
    five_checks(run, models, key)
    _check_sum(run)


def test_every_round_of_tools_counts(shell_server: ServerProcess, models: ModelServer, key: str) -> None:
    line = script("toolcall", arguments={"command": "true"}, rounds=3, tokens=2, key=key)
    run = shell_server.api(key).start(line)
    run.wait_parked()
    assert _end(run)["calls"] == 4
    five_checks(run, models, key)
    _check_sum(run)


def test_a_plan_that_is_stopped_half_way_counts_what_was_finished_and_what_was_cut(
    api: Api, models: ModelServer, key: str
) -> None:
    plan = (
        goal("done", say_done(f"{key}-done")),
        goal("half", script("trickle", tokens=4000, interval_ms=20, key=key), "done"),
        goal("never", say_done(f"{key}-never"), "half"),
    )
    run = start_plan(api, *plan)
    run.wait_event("text", goal_id="half")
    run.cancel(wait_ms=30_000)
    used = _end(run)
    assert (used["calls"], used["source"]) == (2, "mixed")
    partial = {event["goal_id"]: event["partial"] for event in of_type(run, "usage")}
    assert partial == {"done": False, "half": True}
    five_checks(run, models, key)
    _check_sum(run)


def test_a_turn_that_asked_no_model_has_used_null(shell_server: ServerProcess, models: ModelServer, key: str) -> None:
    tool = {"name": "shell", "arguments": {"command": "true"}}
    run = start_plan(shell_server.api(key), {"id": "tool", "tool": tool})
    run.wait_parked()
    assert _end(run) is None
    assert run.view()["usage"] is None
    five_checks(run, models, key)
    _check_sum(run)


def test_a_turn_that_is_stopped_before_its_first_request_has_used_null(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("agent.before_request") as held:
        run = local.api().start(say_done(key))
        held.wait_reached()
        assert run.view()["usage"] is None  # nothing has ended yet
        run.cancel()
    run.wait_parked()
    assert _end(run) is None
    assert run.view()["usage"] is None
    five_checks(run, models, key)


def test_what_was_used_by_a_turn_that_is_left_out_of_the_transcript_still_counts(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_silent(api, models, key)
    run.cancel(wait_ms=30_000)
    used = run.view()["usage"]
    go_back(run, "rollback")
    assert run.view()["usage"] == used
    five_checks(run, models, key)
    _check_sum(run)
    assert run.view()["usage"]["calls"] == 2


def test_a_resumed_turn_counts_its_own_calls_only(api: Api, models: ModelServer, key: str) -> None:
    plan = (goal("done", say_done(f"{key}-done")), goal("then", script("busy", times=1, retry_after_s=60, key=key), "done"))
    run = start_plan(api, *plan)
    run.wait_event("retry")
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert (_end(run, 0)["calls"], _end(run, 1)["calls"]) == (1, 1)  # a refused call has used nothing
    assert run.view()["usage"]["calls"] == 2
    five_checks(run, models, key)
    _check_sum(run)


def test_a_killed_server_loses_no_usage_that_was_recorded(own: ServerProcess, models: ModelServer, key: str) -> None:
    plan = (goal("done", say_done(f"{key}-done")), goal("then", script("silent", key=key), "done"))
    run = start_plan(own.api(), *plan)
    recorded = run.wait_event("usage", goal_id="done")
    models.wait_calls(1, key=key)
    own.kill()
    own.start()
    run = seen_at(own, run)
    used = _end(run)
    assert (used["calls"], used["source"]) == (1, "observed")
    assert [used[name] for name in ("input_tokens", "output_tokens")] == [
        recorded["input_tokens"], recorded["output_tokens"]
    ]  # fmt: skip
    assert run.view()["usage"] == used
    five_checks(run, models, key)
