"""The event log as its readers see it: nothing lost, nothing twice, the same for all."""

import threading
from typing import Any

import pytest
import requests

from tests.support.api_client import PATIENCE_S, Api, EventReader, Run, parse_events
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan, start_streaming
from tests.support.servers import ServerProcess


def _events(run: Run, headers: Any = None, query: Any = "") -> requests.Response:
    return run.api.request("GET", f"{run.path}/events{query}", headers=headers or {}, stream=True)


def _frames(body: bytes) -> bytes:
    """The frames without the comment lines, which are each reader's own."""
    return b"\n\n".join(frame for frame in body.split(b"\n\n") if frame and not frame.startswith(b":"))


def test_every_event_has_the_next_number_and_says_what_it_belongs_to(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(server.api(), goal("a", say_done(key)), goal("b", say_done(key), "a"))
    events = run.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["run_id"] for event in events} == {run.id}
    assert events[0]["type"] == "run_started"
    assert events[1]["type"] == "turn_started"
    assert [event["type"] for event in events[-2:]] == ["turn_completed", "awaiting_input"]
    assert {event["goal_id"] for event in events if event["type"] == "text"} == {"a", "b"}
    assert all(event["at"].endswith("Z") and "T" in event["at"] for event in events)
    assert all(event.get("turn_id") == run.first_turn for event in events[1:-1])


def test_what_a_model_call_used_is_recorded_also_when_it_was_stopped(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(), models, key)
    models.wait_tokens(10, key=key)
    run.cancel(wait_ms=30_000)
    (usage,) = [event for event in run.events() if event["type"] == "usage"]
    assert usage["partial"] is True
    assert usage["source"] == "estimated"
    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] is None or usage["output_tokens"] > 0
    run.say(say_done(key))
    run.wait_parked()
    assert [event["partial"] for event in run.events(_is_parked_twice()) if event["type"] == "usage"] == [True, False]
    five_checks(run, models, key)


def _is_parked_twice() -> Any:
    seen: list[int] = []

    def is_second(event: dict[str, Any]) -> bool:
        seen.extend([event["seq"]] if event["type"] == "awaiting_input" else [])
        return len(seen) == 2

    return is_second


@pytest.mark.parametrize("by", ["header", "query"])
def test_a_reader_that_comes_back_gets_what_it_missed_and_nothing_twice(
    server: ServerProcess, models: ModelServer, key: str, by: str
) -> None:
    run = start_streaming(server.api(), models, key, tokens=60)
    got: list[dict[str, Any]] = []
    while not got or got[-1]["type"] != "awaiting_input":
        after = got[-1]["seq"] if got else 0
        asked = {"headers": {"Last-Event-ID": str(after)}} if by == "header" else {"query": f"?after={after}"}
        response = _events(run, **asked)
        for event in parse_events(response):
            got.append(event)
            if event["seq"] >= after + 7 or event["type"] == "awaiting_input":
                break
        response.close()
    assert [event["seq"] for event in got] == list(range(1, len(got) + 1))
    assert got == run.events()


def test_the_header_counts_more_than_the_query(api: Api, key: str) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    response = _events(run, {"Last-Event-ID": "3"}, "?after=1")
    assert next(parse_events(response))["seq"] == 4
    response.close()


def test_a_stream_outlives_parking_and_ends_with_the_run(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(say_done(key))
    with run.stream() as reader:
        reader.collect_type("awaiting_input")
        run.say(script("silent", key=key))
        models.wait_open(1, key=key)
        run.cancel()
        reader.collect_type("turn_cancelled")
        reader.collect_type("awaiting_input")
        run.say(say_done(key))
        reader.collect_type("turn_completed")
        reader.collect_type("awaiting_input")
        run.terminate()
        rest = list(reader)
    assert [event["type"] for event in rest] == ["run_cancelled"]
    five_checks(run, models, key)


def test_all_readers_see_the_same_bytes_whenever_they_come(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = server.api().start(script("trickle", tokens=60, interval_ms=10, key=key), interactive=False)
    bodies: list[bytes] = []

    def read() -> None:
        bodies.append(_events(run).content)

    readers = [threading.Thread(target=read) for _ in range(12)]
    for number, reader in enumerate(readers):
        models.wait_tokens(4 * number, key=key)
        reader.start()
    for reader in readers:
        reader.join(PATIENCE_S)
    read()
    assert len(bodies) == 13
    assert {_frames(body) for body in bodies} == {_frames(bodies[0])}
    assert _frames(bodies[0]).count(b"event: text\n") == 60


def test_a_stream_of_a_run_that_is_over_is_the_whole_log_and_ends(api: Api, key: str) -> None:
    run = api.start(say_done(key), interactive=False)
    run.events()
    whole = list(EventReader(run))
    assert whole[-1]["type"] == "run_completed"
    assert len(whole) == run.view()["last_seq"]


def test_a_reader_that_is_ahead_waits_for_what_comes(api: Api, key: str) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    last = run.view()["last_seq"]
    with run.stream(after=last) as reader:
        run.say(say_done(key))
        assert reader.collect_type("turn_started")["seq"] > last


@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "1e3", "0x1", "9" * 30, "1;2", "\u00b2"])
def test_a_last_event_id_that_is_no_number_is_refused(api: Api, key: str, value: str) -> None:
    run = api.start(say_done(key))
    answer = _events(run, {"Last-Event-ID": value.encode("utf-8").decode("latin-1")})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    for query in ("?after=-1", "?after=x", "?befor=1"):
        assert _events(run, query=query).status_code == 422
    run.wait_parked()


def test_a_start_can_be_answered_by_its_events_up_to_the_parking(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    api = any_server.api()
    body = {"input": say_done(key), "planning": "none"}
    answer = api.request("POST", "/v1/runs", json=body, headers={"Accept": "text/event-stream"}, stream=True)
    assert (answer.status_code, answer.headers["Content-Type"].split(";")[0]) == (201, "text/event-stream")
    events = list(parse_events(answer))
    run_id = events[0]["run_id"]
    assert answer.headers["Location"] == f"/v1/runs/{run_id}"
    assert [event["type"] for event in events[-2:]] == ["turn_completed", "awaiting_input"]
    assert api.get(f"/v1/runs/{run_id}")["last_seq"] == events[-1]["seq"]


@pytest.mark.parametrize(
    ("line", "interactive", "ends"),
    [
        (("error", {"status": 400}), True, ["turn_failed", "awaiting_input"]),
        (("error", {"status": 400}), False, ["turn_failed", "run_failed"]),
        (("trickle", {"tokens": 1}), False, ["turn_completed", "run_completed"]),
    ],
    ids=["failed", "failed-batch", "batch"],
)
def test_such_an_answer_ends_however_the_turn_ends(
    api: Api, key: str, line: tuple[str, dict[str, int]], interactive: bool, ends: list[str]
) -> None:
    body = {"input": script(line[0], **line[1], key=key), "planning": "none", "interactive": interactive}
    answer = api.request("POST", "/v1/runs", json=body, headers={"Accept": "text/event-stream"}, stream=True)
    assert [event["type"] for event in parse_events(answer)][-2:] == ends


def test_such_an_answer_ends_with_a_stop_by_somebody_else(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    api = any_server.api()
    body = {"input": script("silent", key=key), "planning": "none"}
    answer = api.request("POST", "/v1/runs", json=body, headers={"Accept": "text/event-stream"}, stream=True)
    events = parse_events(answer)
    first = next(events)
    models.wait_open(1, key=key)
    turn = any_server.api().get(f"/v1/runs/{first['run_id']}")["turn_id"]
    run = Run(any_server.api(), {"run_id": first["run_id"], "session_id": first["session_id"], "turn_id": turn})
    assert run.cancel()["stopped"] is True
    assert [event["type"] for event in events][-2:] == ["turn_cancelled", "awaiting_input"]
    five_checks(run, models, key)
