"""What a stop answers, in every state in which it can arrive."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import say_done, start_silent, start_streaming
from tests.support.servers import LocalServer, ServerProcess, gate


def test_a_stop_of_a_running_turn_names_run_and_turn_and_never_shows_it_running_again(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(), models, key)
    answer = run.cancel(reason="changed my mind")
    assert (answer["run_id"], answer["turn_id"], answer["stopped"]) == (run.id, run.first_turn, True)
    seen: list[str] = []
    while not seen or seen[-1] != "awaiting_input":
        seen.append(run.state)
    assert set(seen) <= {"stopping", "awaiting_input"}
    end = run.wait_event("turn_cancelled")
    assert (end["cause"], end["reason"]) == ("user", "changed my mind")
    five_checks(run, models, key)


def test_a_stop_that_waits_answers_parked_with_the_final_receipt(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(any_server.api(), models, key)
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"], answer["state"]) == (True, True, "awaiting_input")
    assert run.state == "awaiting_input"
    assert answer["receipt"] == run.wait_event("turn_cancelled")["receipt"]
    assert answer["receipt"] == run.api.get(f"{run.path}/receipts")["receipts"][-1]["receipt"]
    assert {item["kind"] for item in answer["receipt"]} == {"model_call", "goal"}
    five_checks(run, models, key)


def test_a_stop_whose_wait_is_over_first_does_not_say_parked(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding:
        answer = run.cancel(wait_ms=50)
        unwinding.wait_reached()
        assert (answer["stopped"], answer["parked"], answer["state"]) == (True, False, "stopping")
        assert run.state == "stopping"
    five_checks(run, models, key)


def test_a_stop_of_a_turn_that_is_stopping_joins_it(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(server.api(), models, key, cancel="deaf")
    with ThreadPoolExecutor(1) as other:
        first = other.submit(run.cancel, wait_ms=30_000)
        models.wait_asked(1, key=key)
        second = run.cancel(wait_ms=30_000)
    assert second == first.result()
    assert (second["stopped"], second["turn_id"]) == (True, run.first_turn)
    five_checks(run, models, key)


def test_ten_stops_at_once_are_one_stop(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(server.api(), models, key, cancel="deaf")
    apis = [server.api() for _ in range(10)]
    answers = in_threads(10, lambda number: apis[number].post(f"{run.path}/cancel"))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["stopped"] is True
    events = five_checks(run, models, key)
    kinds = [event["type"] for event in events if event.get("turn_id") == run.first_turn]
    assert (kinds.count("stop_requested"), kinds.count("turn_cancelled")) == (1, 1)


def test_stops_that_come_while_and_after_a_turn_unwinds_all_answer_truthfully(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(any_server.api(), models, key)
    apis = [any_server.api() for _ in range(10)]
    answers = in_threads(10, lambda number: apis[number].post(f"{run.path}/cancel"))
    stopped = [answer for answer in answers if answer["stopped"]]
    assert stopped
    assert all(answer["receipt"] == stopped[0]["receipt"] for answer in stopped)
    assert all(answer["parked"] for answer in answers if not answer["stopped"])
    assert {answer["turn_id"] for answer in answers} == {run.first_turn}
    events = five_checks(run, models, key)
    assert [event["type"] for event in events].count("stop_requested") == 1


@pytest.mark.parametrize("line", [("trickle", {"tokens": 1}), ("error", {"status": 400})], ids=["completed", "failed"])
def test_a_stop_of_a_parked_run_changes_nothing(
    api: Api, models: ModelServer, key: str, line: tuple[str, dict[str, int]]
) -> None:
    run = api.start(script(line[0], **line[1], key=key))
    last = run.events()[-1]["seq"]
    for fields in ({}, {"if_turn": run.first_turn}, {"wait_ms": 1000}, {"inbox": "drop"}):
        answer = run.cancel(**fields)
        assert (answer["stopped"], answer["parked"], answer["receipt"]) == (False, True, [])
    assert run.view()["last_seq"] == last
    five_checks(run, models, key)


def test_a_stop_of_a_turn_that_ended_an_instant_ago_is_true_either_way(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(say_done(key))
    with run.stream() as reader:
        reader.collect_type("text")
        answer = run.cancel(wait_ms=30_000)
        end = reader.collect(lambda event: event["type"].startswith("turn_") and event["type"] != "turn_started")[-1]
    assert answer["stopped"] is (end["type"] == "turn_cancelled")
    assert answer["parked"] is True
    five_checks(run, models, key)


def test_ending_a_run_is_told_from_stopping_its_turn(api: Api, models: ModelServer, key: str) -> None:
    run = start_streaming(api, models, key)
    answer = run.terminate(wait_ms=30_000, reason="enough")
    assert (answer["stopped"], answer["parked"], answer["state"]) == (True, False, "cancelled")
    events = run.events(lambda event: event["type"] == "run_cancelled")
    assert [event["type"] for event in events[-2:]] == ["turn_cancelled", "run_cancelled"]
    assert events[-1]["cause"] == "user"
    again = run.terminate()
    assert (again["stopped"], again["state"]) == (False, "cancelled")
    assert run.cancel(expect=409)["code"] == "run_is_over"
    five_checks(run, models, key)


def test_ending_a_parked_run_ends_it_and_ending_one_that_is_over_otherwise_is_refused(
    api: Api, models: ModelServer, key: str
) -> None:
    parked = api.start(say_done(key))
    parked.events()
    assert parked.terminate()["state"] == "cancelled"
    batch = api.start(say_done(key), interactive=False)
    assert batch.events()[-1]["type"] == "run_completed"
    assert batch.terminate(expect=409)["code"] == "run_is_over"
    five_checks(parked, models, key)


def test_ending_a_run_during_a_stop_of_its_turn_ends_the_run(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(server.api(), models, key, cancel="deaf")
    with ThreadPoolExecutor(1) as other:
        stop = other.submit(run.cancel)
        models.wait_asked(1, key=key)
        assert run.terminate(wait_ms=30_000)["state"] == "cancelled"
        assert stop.result()["stopped"] is True
    five_checks(run, models, key)


def test_a_batch_run_has_no_turn_stop_but_can_be_ended(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(), models, key, interactive=False)
    assert run.cancel(expect=409)["code"] == "not_interactive"
    assert run.state == "running"
    assert run.terminate(wait_ms=30_000)["state"] == "cancelled"
    five_checks(run, models, key, is_batch=True)


def test_what_is_not_the_callers_is_answered_like_what_does_not_exist(
    server: ServerProcess, api: Api, models: ModelServer, key: str
) -> None:
    run = start_streaming(api, models, key)
    stranger = server.api("mallory")
    unknown = "r_01JZZZZZZZZZZZZZZZZZZZZZZZ"
    for verb in ("cancel", "terminate"):
        foreign = stranger.post(f"{run.path}/{verb}", expect=404)
        missing = stranger.post(f"/v1/runs/{unknown}/{verb}", expect=404)
        assert {**foreign, "instance": ""} == {**missing, "instance": ""}
    assert run.state == "running"
    run.cancel()
    five_checks(run, models, key)


def test_the_checks_come_in_their_order(server: ServerProcess, api: Api, models: ModelServer, key: str) -> None:
    batch = start_streaming(api, models, key, interactive=False)
    other_turn = {"if_turn": "t_other"}
    stranger = Run(server.api("mallory"), {"run_id": batch.id, "session_id": "", "turn_id": ""})
    assert stranger.cancel(expect=404, **other_turn)["code"] == "not_found"
    assert batch.cancel(expect=409, **other_turn)["code"] == "turn_is_over"
    assert batch.cancel(expect=409)["code"] == "not_interactive"
    batch.terminate(wait_ms=30_000)
    assert batch.cancel(expect=409, **other_turn)["code"] == "run_is_over"
    assert stranger.cancel(expect=404, **other_turn)["code"] == "not_found"
    parked = api.start(say_done(key))
    parked.events()
    assert parked.cancel(expect=409, **other_turn)["code"] == "turn_is_over"
    five_checks(parked, models, key)


def test_a_stop_is_answered_while_many_turns_run(server: ServerProcess, models: ModelServer, key: str) -> None:
    runs = [start_silent(server.api(), models, key) for _ in range(20)]
    asked_at = time.monotonic()
    answers = in_threads(len(runs), lambda number: runs[number].cancel(wait_ms=30_000))
    assert time.monotonic() - asked_at < 5
    assert all(answer["stopped"] and answer["parked"] for answer in answers)
    models.wait_open(0, key=key)
    for run in runs[:2]:
        five_checks(run, models, key)
