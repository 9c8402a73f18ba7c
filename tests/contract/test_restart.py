"""What survives a kill of the server: all that was acknowledged, and the truth about what was lost."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.api_client import Run, in_threads
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import (
    all_events,
    delivered_up_to,
    goal,
    say_done,
    seen_at,
    start_plan,
    start_silent,
    start_streaming,
)
from tests.support.servers import ServerProcess


def test_a_kill_while_streaming_keeps_the_text_and_says_that_the_server_was_lost(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    plan = [
        goal("said", say_done(key)),
        goal("saying", script("trickle", tokens=900, interval_ms=20, key=key), "said"),
        goal("later", say_done(key), "saying"),
    ]
    run = start_plan(own.api(), *plan)
    seen = run.events(lambda event: event["type"] == "text" and event["goal_id"] == "saying")
    own.kill()
    models.wait_open(0, key=key)
    own.start()
    run = seen_at(own, run)
    assert run.state == "awaiting_input"
    events = all_events(run)
    assert events[: len(seen)] == seen
    end = next(event for event in events if event["type"] == "turn_cancelled")
    assert end["cause"] == "server_lost"
    goals = run.goals()
    assert {name: each["status"] for name, each in goals.items()} == {
        "said": "COMPLETED", "saying": "CANCELLED", "later": "CANCELLED"
    }  # fmt: skip
    assert {goals[name]["cause"] for name in ("saying", "later")} == {"server_lost"}
    said = run.transcript()[-1]
    assert said["content"].startswith("t1 t2 \n\nt1 ")
    assert (said["stopped"], said["cause"]) == (True, "server_lost")
    assert "user" not in {event.get("cause") for event in events}
    five_checks(run, models, key)


def test_a_kill_before_any_text_leaves_a_mark_and_every_run_settled(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    runs = [start_silent(own.api(), models, f"{key}-{number}") for number in range(3)]
    batch = start_silent(own.api(), models, f"{key}-batch", interactive=False)
    planning = own.api().start(script("silent", on="plan", key=f"{key}-p"), planning="auto")
    models.wait_open(1, key=f"{key}-p")
    own.kill()
    own.start()
    for number, run in enumerate(seen_at(own, run) for run in [*runs, planning]):
        assert run.state == "awaiting_input"
        assert run.transcript()[-1]["content"] == "[stopped: server_lost before any text]"
        assert run.cancel()["stopped"] is False
        five_checks(run, models, f"{key}-{number}")
    batch = seen_at(own, batch)
    assert batch.state == "failed"
    assert all_events(batch)[-1]["cause"] == "server_lost"
    five_checks(batch, models, f"{key}-batch", is_batch=True)


def test_a_stop_that_was_acknowledged_is_the_users_stop_after_a_kill(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    runs = [start_silent(own.api(), models, f"{key}-{number}", cancel="deaf") for number in range(5)]
    answers = in_threads(5, lambda number: runs[number].cancel(reason="enough"))
    own.kill()
    own.start()
    assert all(answer["stopped"] for answer in answers)
    for number, run in enumerate(runs):
        _assert_stopped_by_the_user(seen_at(own, run), models, f"{key}-{number}")


def test_a_stop_that_its_readers_have_seen_is_the_users_stop_after_a_kill(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(own.api(), models, key, cancel="deaf")
    other = seen_at(own, run)
    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(other.cancel, reason="enough", wait_ms=30_000)
        run.wait_event("stop_requested")
        own.kill()
        with pytest.raises(requests.ConnectionError):
            stop.result()
    own.start()
    _assert_stopped_by_the_user(seen_at(own, run), models, key)


def _assert_stopped_by_the_user(run: Run, models: ModelServer, key: str) -> None:
    assert run.state == "awaiting_input"
    end = next(event for event in all_events(run) if event["type"] == "turn_cancelled")
    assert (end["cause"], end["reason"]) == ("user", "enough")
    assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"
    events = five_checks(run, models, key)
    assert [event["type"] for event in events].count("stop_requested") == 1


#: Messages and new runs of each of eight users.
@pytest.mark.parametrize(("messages", "runs"), [(3, 4), pytest.param(12, 13, marks=pytest.mark.slow)])
def test_nothing_that_was_acknowledged_is_lost(
    own: ServerProcess, models: ModelServer, key: str, messages: int, runs: int
) -> None:
    running = start_streaming(own.api(), models, key)
    acknowledged: list[str] = []

    def send(number: int) -> None:
        api = own.api()
        for _ in range(messages):
            answer = api.post(f"{running.path}/input", {"text": say_done(key)}, expect=202)
            acknowledged.append(answer["message_id"])
        for turn in range(runs):
            fields = {"input": say_done(key), "planning": "none", "session_id": f"{key}-{number}-{turn}"}
            acknowledged.append(api.post("/v1/runs", fields, expect=201)["run_id"])

    in_threads(8, send)
    own.kill()
    assert len(acknowledged) == 8 * (messages + runs)
    inputs = [name for name in acknowledged if name.startswith("m_")]
    own.start()
    after = seen_at(own, running)
    for run_id in set(acknowledged) - set(inputs):
        run = Run(after.api, {"run_id": run_id, "session_id": "", "turn_id": ""})
        assert run.wait_parked() == "awaiting_input"
        assert run.transcript()[0]["content"] == say_done(key)
    queued = [each["message_id"] for each in all_events(after) if each["type"] == "message_queued"]
    assert sorted(queued) == sorted(inputs)
    kept = [each["message_id"] for each in after.api.get(f"{after.path}/inbox")["messages"]]
    delivered = [each["message_id"] for each in all_events(after) if each["type"] == "message_delivered"]
    assert delivered + kept == queued
    last = after.say(say_done(key))["message_id"]
    assert delivered_up_to(after, last) == [*queued, last]
