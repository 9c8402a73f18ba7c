"""A stop reaches the turn that it means, early or late, and says by what it was caused."""

from typing import Any

import pytest
import requests

from tests.support.api_client import Api, Run, parse_events
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan, start_silent, start_streaming
from tests.support.servers import ServerProcess


def _completed(run: Run) -> list[str]:
    events = run.events(lambda event: event["seq"] == run.view()["last_seq"])
    return [event["turn_id"] for event in events if event["type"] == "turn_completed"]


def test_after_one_stop_twenty_turns_run(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(any_server.api(), models, key)
    assert run.cancel(wait_ms=30_000)["parked"] is True
    for _ in range(20):
        run.say(say_done(key))
        run.wait_parked()
    elsewhere = any_server.api().start(say_done(key))
    assert "turn_completed" in [event["type"] for event in elsewhere.events()]
    assert len(_completed(run)) == 20
    five_checks(run, models, key)


def test_a_stop_of_an_idle_run_does_not_reach_the_turn_after_it(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api(key).start(say_done(key))
    run.wait_parked()
    assert run.cancel()["stopped"] is False
    assert run.api.post("/stopplan")["stopped"] is False
    run.say(say_done(key))
    run.wait_parked()
    assert len(_completed(run)) == 2
    five_checks(run, models, key)


def test_a_late_stop_for_a_turn_that_is_over_leaves_the_new_turn_alone(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(say_done(key))
    run.wait_parked()
    new = run.say(script("trickle", tokens=20, interval_ms=20, key=key))["turn_id"]
    models.wait_tokens(3, key=key)
    assert run.cancel(expect=409, if_turn=run.first_turn)["code"] == "turn_is_over"
    run.wait_parked()
    assert _completed(run) == [run.first_turn, new]
    assert run.transcript()[-1]["content"].endswith("t20 ")
    five_checks(run, models, key)


def test_the_rest_of_a_stopped_answer_never_shows_in_the_next_turn(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("late", tokens=900, interval_ms=10, after_ms=3000, key=key))
    run.wait_event("text")
    run.cancel(wait_ms=30_000)
    stopped_text = run.transcript()[-1]["content"]
    after = run.view()["last_seq"]
    run.say(script("trickle", tokens=10, interval_ms=30, key=key))
    events = run.events(after=after)
    assert "".join(event["text"] for event in events if event["type"] == "text") == run.transcript()[-1]["content"]
    assert run.transcript()[-1]["content"] == "".join(f"t{number} " for number in range(1, 11))
    assert run.transcript()[1]["content"] == stopped_text
    five_checks(run, models, key)


def test_a_stop_right_after_the_start_stops_that_turn(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    api = any_server.api()
    for number in range(10):
        run = api.start(script("silent", key=f"{key}-{number}"))
        answer = run.cancel(wait_ms=30_000)
        assert (answer["stopped"], answer["parked"], answer["turn_id"]) == (True, True, run.first_turn)
        models.wait_open(0, key=f"{key}-{number}")
    five_checks(run, models, f"{key}-9")


def test_a_stop_right_after_a_message_stops_the_turn_of_that_message(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api(key).start(say_done(key))
    run.wait_parked()
    for number in range(5):
        new = run.say(script("silent", key=f"{key}-{number}"))["turn_id"]
        assert run.cancel(if_turn=new, wait_ms=30_000)["turn_id"] == new
        new = run.say(script("silent", key=f"{key}-{number}"))["turn_id"]
        assert run.api.post("/stopplan")["turn_id"] == new
        run.wait_parked()
    assert _completed(run) == [run.first_turn]
    for number in range(5):
        models.wait_open(0, key=f"{key}-{number}")
    five_checks(run, models, key)


@pytest.mark.parametrize("line", [("silent", {}), ("busy", {"retry_after_s": 50})], ids=["call", "wait"])
def test_a_deadline_is_told_as_a_deadline_everywhere(
    any_server: ServerProcess, models: ModelServer, key: str, line: tuple[str, dict[str, Any]]
) -> None:
    plan = (goal("a", script(line[0], **line[1], key=key)), goal("b", say_done(key), "a"))
    run = start_plan(any_server.api(), *plan, deadline_ms=300)
    events = run.events()
    causes = {event["type"]: event["cause"] for event in events if event.get("cause")}
    assert causes == {"stop_requested": "deadline", "goal_status": "deadline", "turn_cancelled": "deadline"}
    said = run.transcript()[-1]
    assert (said["content"], said["cause"]) == ("[stopped: deadline before any text]", "deadline")
    assert [each["cause"] for each in run.api.get(f"{run.path}/receipts")["receipts"]] == ["deadline"]
    assert {each["cause"] for each in run.goals(run.first_turn).values()} == {"deadline"}
    run.say(say_done(key))
    assert run.wait_parked() == "awaiting_input"
    five_checks(run, models, key)


def test_a_deadline_that_is_kept_stops_nothing(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = any_server.api().start(say_done(key), deadline_ms=60_000)
    assert "turn_completed" in [event["type"] for event in run.events()]
    five_checks(run, models, key)


def test_a_dependency_that_failed_and_a_gateway_that_cancels_never_read_as_the_user(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    plan = (goal("bad", script("error", status=400, key=key)), goal("waits", say_done(key), "bad"))
    run = start_plan(server.api(), *plan, goal("cut", script("silent", key=key)), goal("good", say_done(key)))
    cut = next(call for call in models.wait_calls(3, key=key) if call.script == "silent")
    assert cut.token is not None
    assert models.cancel(cut.token) == "cancelled"
    events = run.events()
    assert "turn_completed" in [event["type"] for event in events]
    goals = run.goals()
    assert (goals["waits"]["status"], goals["waits"]["cause"]) == ("CANCELLED", "dependency")
    assert (goals["cut"]["status"], goals["cut"]["cause"]) == ("CANCELLED", "operator")
    assert "user" not in {event.get("cause") for event in events}
    five_checks(run, models, key)


def _open_stream(api: Api, on_disconnect: str, prompt: str) -> tuple[requests.Response, Run]:
    answer = api.request(
        "POST", "/v1/runs", stream=True, headers={"Accept": "text/event-stream"},
        json={"input": prompt, "planning": "none", "on_disconnect": on_disconnect},
    )  # fmt: skip
    assert answer.status_code == 201
    first = next(parse_events(answer))
    turn = api.get(f"/v1/runs/{first['run_id']}")["turn_id"]
    return answer, Run(api, {"run_id": first["run_id"], "session_id": first["session_id"], "turn_id": turn})


def test_hanging_up_stops_the_turn_where_that_was_asked_for(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    stream, run = _open_stream(any_server.api(), "stop", script("silent", key=key))
    models.wait_open(1, key=key)
    stream.close()
    end = run.wait_event("turn_cancelled")
    assert end["cause"] == "client_gone"
    assert run.transcript()[-1]["content"] == "[stopped: client_gone before any text]"
    five_checks(run, models, key)


def test_hanging_up_changes_nothing_otherwise(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    stream, run = _open_stream(any_server.api(), "continue", script("trickle", tokens=30, interval_ms=20, key=key))
    models.wait_tokens(2, key=key)
    stream.close()
    assert "turn_completed" in [event["type"] for event in run.events()]
    assert run.transcript()[-1]["content"].endswith("t30 ")
    five_checks(run, models, key)


def test_a_second_reader_that_hangs_up_stops_nothing(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_streaming(server.api(), models, key, tokens=40, on_disconnect="stop")
    with run.stream() as reader:
        reader.collect_type("text")
    assert "turn_completed" in [event["type"] for event in run.events()]
    five_checks(run, models, key)


def test_a_client_that_hangs_up_after_the_turns_end_stops_nothing(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    stream, run = _open_stream(server.api(), "stop", say_done(key))
    run.wait_parked()
    run.say(script("trickle", tokens=20, interval_ms=20, key=key))
    stream.close()
    assert run.wait_parked() == "awaiting_input"
    assert len(_completed(run)) == 2
    five_checks(run, models, key)
