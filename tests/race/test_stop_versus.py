"""A stop against what happens at the same moment: the end of the turn, its beginning, a message, a terminate."""

from typing import Any

import pytest

from core.errors import StoreError
from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import TURN_ENDS, five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import start_silent
from tests.support.race_kit import Later, turn_of
from tests.support.servers import LocalServer, gate, wait_until


def _stop(run: Run, route: str, **fields: Any) -> Any:
    return run.api.post("/stopplan") if route == "/stopplan" else run.cancel(**fields)


def _ends(run: Run) -> list[str]:
    last = run.view()["last_seq"]
    return [event["type"] for event in run.events(lambda event: event["seq"] == last) if event["type"] in TURN_ENDS]


both_routes = pytest.mark.parametrize("route", ["cancel", "/stopplan"])


# -- a stop and the end of the turn -------------------------------------------------------------


@both_routes
def test_a_stop_just_before_the_end_is_stopped_and_keeps_what_was_said(
    local: LocalServer, models: ModelServer, key: str, route: str
) -> None:
    with gate("turn.before_finish") as at_end:
        run = local.api().start(script("strict", key=key))
        at_end.wait_reached()
        assert _stop(run, route)["stopped"] is True
        assert run.state == "stopping"
    assert run.wait_parked() == "awaiting_input"
    assert _ends(run) == ["turn_cancelled"]
    said = run.transcript()[-1]
    assert (said["content"], said["stopped"]) == ("All messages are in order.", True)
    assert run.goals()["answer"]["status"] == "COMPLETED"
    five_checks(run, models, key)


@both_routes
def test_a_stop_after_the_end_was_decided_says_that_the_turn_had_finished(
    local: LocalServer, models: ModelServer, key: str, route: str
) -> None:
    with gate("engine.before_final_write") as decided, gate("engine.before_stop") as arriving:
        run = local.api().start(script("strict", key=key))
        decided.wait_reached()
        stop = Later(lambda: _stop(run, route))
        arriving.wait_reached()
        arriving.open()
        assert not stop.is_done  # what is not durable is not answered
        decided.open()
        assert stop.result()["stopped"] is False
    assert run.wait_parked() == "awaiting_input"
    assert _ends(run) == ["turn_completed"]
    assert "stopped" not in run.transcript()[-1]
    five_checks(run, models, key)


@both_routes
def test_a_stop_after_the_end_was_written_says_that_the_turn_had_finished(
    local: LocalServer, models: ModelServer, key: str, route: str
) -> None:
    with gate("engine.after_final_write") as written:
        run = local.api().start(script("strict", key=key))
        written.wait_reached()
        assert run.state == "awaiting_input"
        stop = Later(lambda: _stop(run, route))
        written.open()
        answer = stop.result()
    assert answer["stopped"] is False
    assert route == "/stopplan" or answer["parked"] is True
    assert _ends(run) == ["turn_completed"]
    five_checks(run, models, key)


def test_a_turn_that_failed_a_moment_before_the_stop_ends_once_and_as_stopped(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("turn.before_finish") as at_end:
        run = local.api().start(script("error", status=400, key=key))
        at_end.wait_reached()
        assert run.cancel()["stopped"] is True
    run.wait_parked()
    assert _ends(run) == ["turn_cancelled"]
    five_checks(run, models, key)


# -- a stop and the beginning of the turn ---------------------------------------------------------


@pytest.mark.parametrize("planning", ["none", "auto"])
@pytest.mark.parametrize(
    "point",
    [
        "engine.accepted", "engine.claimed", "engine.began", "chatbot.before_planning", "scheduler.before_goal_starts",
        "agent.before_request", "model_call.before_sent",
    ],
)  # fmt: skip
def test_a_stop_before_the_first_request_is_not_lost_and_nothing_reaches_the_model_server(
    local: LocalServer, models: ModelServer, key: str, point: str, planning: str
) -> None:
    with gate(point) as before:
        started = Later(lambda: local.api(key).start(script("strict", key=key), planning))
        before.wait_reached()
        (shown,) = local.api(key).get("/v1/runs")["runs"]
        answer = local.api(key).post(f"/v1/runs/{shown['run_id']}/cancel")
        assert (answer["stopped"], answer["turn_id"]) == (True, shown["turn_id"])
        assert answer["state"] == "stopping"
    run = started.result()
    assert run.wait_parked() == "awaiting_input"
    assert models.calls(key=key) == []
    assert _ends(run) == ["turn_cancelled"]
    assert [message["content"] for message in run.transcript()][1:] == ["[stopped by the user before any text]"]
    five_checks(run, models, key)


def test_a_terminate_after_the_claim_and_before_the_beginning_ends_the_run(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("engine.claimed") as claimed:
        run = local.api().start(script("strict", key=key))
        claimed.wait_reached()
        assert run.terminate()["stopped"] is True
    assert run.wait_parked() == "cancelled"
    assert models.calls(key=key) == []
    five_checks(run, models, key)


def test_a_turn_that_could_not_begin_for_a_full_disk_parks_and_the_next_message_works(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gate("engine.claimed") as claimed:
        run = local.api().start(script("strict", key=key))
        claimed.wait_reached()

        def refuse(*_: Any) -> Any:
            raise StoreError

        monkeypatch.setattr("core.engine.embedded.begin_turn", refuse)
    assert run.wait_parked() == "awaiting_input"
    assert _ends(run) == ["turn_failed"]
    monkeypatch.undo()
    five_checks(run, models, key)


# -- a stop and a clean-up that fails ---------------------------------------------------------------


def test_a_goal_whose_clean_up_fails_during_a_stop_is_stopped_and_keeps_the_error_as_a_detail(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = local.main.agents["default"]
    original = agent.ask

    def ask(*arguments: Any) -> Any:
        try:
            return original(*arguments)
        finally:
            raise RuntimeError("the clean-up failed")

    monkeypatch.setattr(agent, "ask", ask)
    run = start_silent(local.api(), models, key)
    run.cancel(wait_ms=30_000)
    answered = run.goals()["answer"]
    assert (answered["status"], answered["cause"]) == ("CANCELLED", "user")
    assert answered["error"] == "internal error (RuntimeError)"
    end = run.wait_event("turn_cancelled")
    (item,) = [item for item in end["receipt"] if item["kind"] == "goal"]
    assert (item["outcome"], item["detail"]) == ("cancelled", "internal error (RuntimeError)")
    monkeypatch.undo()
    five_checks(run, models, key)


def test_a_turn_whose_clean_up_fails_during_a_stop_is_stopped_and_keeps_the_error_as_a_detail(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skillset = local.main.engine._skillset
    original = skillset.run_turn

    def run_turn(*arguments: Any) -> None:
        original(*arguments)
        raise RuntimeError("the clean-up failed")

    monkeypatch.setattr(skillset, "run_turn", run_turn)
    run = start_silent(local.api(), models, key)
    run.cancel(wait_ms=30_000)
    monkeypatch.undo()
    end = run.wait_event("turn_cancelled")
    assert (end["cause"], end["error"]) == ("user", "internal error (RuntimeError)")
    assert _ends(run) == ["turn_cancelled"]
    five_checks(run, models, key)


# -- a stop and a message -------------------------------------------------------------------------------


def test_a_message_that_comes_while_the_turn_is_stopping_starts_the_next_turn(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding:
        run.cancel()
        unwinding.wait_reached()
        assert run.say(script("strict", key=key))["disposition"] == "queued"
    end = run.wait_event("turn_completed")
    assert end["turn_id"] != run.first_turn
    assert _ends(run) == ["turn_cancelled", "turn_completed"]
    five_checks(run, models, key)


def test_a_stop_after_the_end_was_decided_does_not_kill_the_turn_of_a_message_that_waited(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("engine.before_final_write") as decided, gate("engine.before_stop") as arriving:
        run = local.api().start(script("strict", key=key))
        decided.wait_reached()
        run.say(script("strict", key=key))
        stop = Later(run.cancel)
        arriving.wait_reached()
        arriving.open()
        decided.open()
        assert stop.result()["stopped"] is False
    assert run.wait_parked() == "awaiting_input"
    assert _ends(run) == ["turn_completed", "turn_completed"]
    five_checks(run, models, key)


@pytest.mark.parametrize("names_turn", [True, False])
def test_a_stop_of_a_turn_that_a_waiting_message_has_just_begun_stops_that_turn(
    local: LocalServer, models: ModelServer, key: str, names_turn: bool
) -> None:
    with gate("engine.before_final_write") as decided, gate("engine.after_final_write") as written:
        run = local.api().start(script("strict", key=key))
        decided.wait_reached()
        run.say(script("silent", key=key))
        decided.open()
        written.wait_reached()
        turn_id = run.view()["turn_id"]
        assert turn_id != run.first_turn
        answer = run.cancel(**({"if_turn": turn_id} if names_turn else {}))
        assert (answer["turn_id"], answer["stopped"]) == (turn_id, True)
    run.wait_event("turn_cancelled", turn_id=turn_id)
    assert _ends(run) == ["turn_completed", "turn_cancelled"]
    five_checks(run, models, key)


def test_a_message_that_comes_right_after_the_last_write_starts_a_turn_that_is_not_lost(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("engine.after_final_write") as written:
        run = local.api().start(script("strict", key=key))
        written.wait_reached()
        assert run.say(script("silent", key=key))["disposition"] == "started"
        models.wait_open(1, key=key)
        written.open()
        answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    five_checks(run, models, key)


# -- a stop and a stop --------------------------------------------------------------------------------------


def test_the_stops_of_two_runs_at_once_each_tell_of_their_own(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    runs = [start_silent(local.api(), models, f"{key}-{number}", cancel="deaf") for number in range(2)]
    api = [Api(run.api.url, run.api.token) for run in runs]
    answers = in_threads(2, lambda number: api[number].post(f"{runs[number].path}/cancel", {"wait_ms": 30_000}))
    for run, answer in zip(runs, answers, strict=True):
        assert (answer["run_id"], answer["stopped"], answer["parked"]) == (run.id, True, True)
        assert [item["kind"] for item in answer["receipt"]] == ["model_call", "goal"]
        five_checks(run, models, f"{key}-{runs.index(run)}")


def test_two_stops_at_the_same_moment_are_one_whichever_is_recorded_first(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding, gate("engine.before_stop_is_recorded") as recording:
        first = Later(lambda: local.api().post(f"{run.path}/cancel", {"reason": "first"}))
        recording.wait_reached()
        second = run.cancel(reason="second")
        unwinding.wait_reached()
        recording.open()
        assert first.result() == second
    events = run.events()
    assert [event["reason"] for event in events if event["type"] == "stop_requested"] == ["first"]
    assert run.wait_event("turn_cancelled")["reason"] == "first"
    five_checks(run, models, key)


def test_a_stop_that_is_recorded_only_after_the_turn_has_ended_adds_nothing(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    with gate("engine.before_stop_is_recorded") as recording:
        first = Later(lambda: local.api().post(f"{run.path}/cancel"))
        recording.wait_reached()
        assert run.wait_parked() == "awaiting_input"
        last = run.view()["last_seq"]
        recording.open()
        assert first.result()["stopped"] is True
    assert run.view()["last_seq"] == last
    five_checks(run, models, key)


def test_a_stop_that_comes_after_the_scope_has_finished_waits_for_the_first_ones_receipt(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    turn = turn_of(local, run)
    with gate("turn.requests_cancelled") as before_receipt:
        first = Later(lambda: local.api().post(f"{run.path}/cancel"))
        before_receipt.wait_reached()
        wait_until(lambda: turn.scope.is_finished, "the scope has finished, after the stop and before its receipt")
        with gate("turn.scope_closed") as joining:
            second = Later(lambda: local.api().post(f"{run.path}/cancel"))
            joining.wait_reached()
        # It has come back too early, or it waits where it should, beside the thread of the turn.
        waiters = turn.stopping._reached._cond._waiters  # type: ignore[attr-defined]
        wait_until(lambda: second.is_done or len(waiters) >= 2, "the second stop comes to rest")
        before_receipt.open()
    assert first.result() == second.result()
    assert [item["outcome"] for item in first.result()["receipt"]] == ["cancelled"]
    five_checks(run, models, key)
