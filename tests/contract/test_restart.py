"""What survives the end of the server: killed, or asked to go."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.api_client import Api, EventReader, Run, in_threads
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan, start_silent, start_streaming
from tests.support.raw_server import RawServer
from tests.support.servers import ServerProcess


@pytest.fixture
def own(models: ModelServer, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may end."""
    with ServerProcess(tmp_path, models.url) as process:
        yield process


def _after_restart(own: ServerProcess, run: Run) -> Run:
    """The same run, seen at the next server."""
    own.start()
    return Run(
        Api(own.url, run.api.token),
        {"run_id": run.id, "session_id": run.session_id, "turn_id": run.first_turn},
    )


def _all_events(run: Run) -> list[dict[str, Any]]:
    last = run.view()["last_seq"]
    return run.events(lambda event: event["seq"] == last)


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
    run = _after_restart(own, run)
    assert run.state == "awaiting_input"
    events = _all_events(run)
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
    runs = [_after_restart(own, runs[0]), *(Run(own.api(), vars_of(run)) for run in [*runs[1:], planning])]
    for number, run in enumerate(runs):
        assert run.state == "awaiting_input"
        assert run.transcript()[-1]["content"] == "[stopped: server_lost before any text]"
        assert run.cancel()["stopped"] is False
        five_checks(run, models, f"{key}-{number}")
    batch = Run(own.api(), vars_of(batch))
    assert batch.state == "failed"
    assert _all_events(batch)[-1]["cause"] == "server_lost"
    five_checks(batch, models, f"{key}-batch", is_batch=True)


def test_a_stop_that_was_acknowledged_is_the_users_stop_after_a_kill(tmp_path: Path) -> None:
    reached = threading.Event()
    with RawServer(lambda peer: _deaf(peer.read_request, reached)) as gateway:
        with ServerProcess(tmp_path, gateway.url, CANCEL_TIMEOUT_MS="200") as own:
            runs = [own.api().start("say nothing") for _ in range(5)]
            for number in range(5):
                gateway.peer(number)
            for run in runs:
                assert run.cancel(reason="enough")["stopped"] is True
            own.kill()
            runs = [_after_restart(own, runs[0]), *(Run(own.api(), vars_of(run)) for run in runs[1:])]
            for run in runs:
                assert run.state == "awaiting_input"
                end = next(event for event in _all_events(run) if event["type"] == "turn_cancelled")
                assert (end["cause"], end["reason"]) == ("user", "enough")
                assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"


def test_nothing_that_was_acknowledged_is_lost(own: ServerProcess, models: ModelServer, key: str) -> None:
    running = start_streaming(own.api(), models, key)
    acknowledged: list[str] = []

    def send(number: int) -> None:
        api = own.api()
        for _ in range(12):
            answer = api.post(f"{running.path}/input", {"text": say_done(key)}, expect=202)
            acknowledged.append(answer["message_id"])
        for turn in range(13):
            fields = {"input": say_done(key), "planning": "none", "session_id": f"{key}-{number}-{turn}"}
            acknowledged.append(api.post("/v1/runs", fields, expect=201)["run_id"])

    in_threads(8, send)
    own.kill()
    assert len(acknowledged) == 200
    messages = [name for name in acknowledged if name.startswith("m_")]
    after = _after_restart(own, running)
    for run_id in set(acknowledged) - set(messages):
        run = Run(after.api, {"run_id": run_id, "session_id": "", "turn_id": ""})
        assert run.wait_parked() == "awaiting_input"
        assert run.transcript()[0]["content"] == say_done(key)
    queued = [each["message_id"] for each in _all_events(after) if each["type"] == "message_queued"]
    assert sorted(queued) == sorted(messages)
    kept = [each["message_id"] for each in after.api.get(f"{after.path}/inbox")["messages"]]
    delivered = [each["message_id"] for each in _all_events(after) if each["type"] == "message_delivered"]
    assert delivered + kept == queued
    last = after.say(say_done(key))["message_id"]
    assert _delivered_up_to(after, last) == [*queued, last]


def test_a_request_to_end_stops_the_turns_as_shutdown_and_records_it_before_the_exit(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(own.api(), models, key)
    with run.stream() as reader:
        reader.collect_type("text")
        assert own.terminate() == 0
        seen = _to_the_end(reader)
    ends = [event for event in seen if event["type"] == "turn_cancelled"]
    assert [event["cause"] for event in ends] == ["shutdown"]
    assert seen[-1]["type"] == "awaiting_input"
    models.wait_open(0, key=key)
    run = _after_restart(own, run)
    assert _all_events(run) == seen
    said = run.transcript()[-1]
    assert said["content"].startswith("t1 ")
    assert (said["stopped"], said["cause"]) == (True, "shutdown")
    five_checks(run, models, key)


def test_a_message_that_waits_when_the_server_is_asked_to_end_is_delivered_by_the_next(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(own.api(), models, key)
    waiting = run.say(say_done(key))["message_id"]
    assert own.terminate() == 0
    run = _after_restart(own, run)
    assert [each["message_id"] for each in run.api.get(f"{run.path}/inbox")["messages"]] == [waiting]
    last = run.say(say_done(f"{key}-2"))["message_id"]
    assert _delivered_up_to(run, last) == [waiting, last]


def test_a_batch_run_that_a_shutdown_stops_has_failed(own: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(own.api(), models, key, interactive=False)
    assert own.terminate() == 0
    run = _after_restart(own, run)
    assert run.state == "failed"
    assert _all_events(run)[-1]["cause"] == "shutdown"
    five_checks(run, models, key, is_batch=True)


def test_a_second_server_on_the_same_data_refuses_in_one_line(own: ServerProcess) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "api"], env=own.environment, cwd=own.data_dir, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert second.returncode != 0
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert str(own.data_dir) in line
    assert own.api().get("/v1/runs")["runs"] == []


def vars_of(run: Run) -> dict[str, Any]:
    """What makes the same run at another server."""
    return {"run_id": run.id, "session_id": run.session_id, "turn_id": run.first_turn}


def _deaf(read_request: Any, reached: threading.Event) -> None:
    """Reads what comes, and answers nothing."""
    while read_request() is not None:
        reached.set()


def _to_the_end(reader: EventReader) -> list[dict[str, Any]]:
    """Everything up to the end of the stream, which must be a proper one."""
    try:
        for _ in reader:
            pass
    except requests.RequestException as error:
        raise AssertionError("the stream was cut") from error
    return reader.seen


def _delivered_up_to(run: Run, last: str) -> list[str]:
    """Ids of the delivered messages in order, up to this one."""
    events = run.events(lambda event: event["type"] == "message_delivered" and event["message_id"] == last)
    return [event["message_id"] for event in events if event["type"] == "message_delivered"]
