"""A server that is asked to end: its turns are stopped as such and recorded, and its streams end properly."""

import subprocess
import sys
from typing import Any

import requests

from tests.support.api_client import EventReader
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import all_events, delivered_up_to, say_done, seen_at, start_silent, start_streaming
from tests.support.servers import ServerProcess


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
    own.start()
    run = seen_at(own, run)
    assert all_events(run) == seen
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
    own.start()
    run = seen_at(own, run)
    assert [each["message_id"] for each in run.api.get(f"{run.path}/inbox")["messages"]] == [waiting]
    last = run.say(say_done(f"{key}-2"))["message_id"]
    assert delivered_up_to(run, last) == [waiting, last]


def test_a_batch_run_that_a_shutdown_stops_has_failed(own: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(own.api(), models, key, interactive=False)
    assert own.terminate() == 0
    own.start()
    run = seen_at(own, run)
    assert run.state == "failed"
    assert all_events(run)[-1]["cause"] == "shutdown"
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


def _to_the_end(reader: EventReader) -> list[dict[str, Any]]:
    """Everything up to the end of the stream, which must be a proper one."""
    try:
        for _ in reader:
            pass
    except requests.RequestException as error:
        raise AssertionError("the stream was cut") from error
    return reader.seen
