"""Messages that come while a turn runs: each has one fate, and a stop does not lose them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import say_done, seen_at, start_silent
from tests.support.servers import LocalServer, ServerProcess, gate


def _inbox(run: Run) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = run.api.get(f"{run.path}/inbox")["messages"]
    return messages


def _ids(run: Run, event_type: str) -> list[str]:
    last = run.view()["last_seq"]
    return [
        event["message_id"] for event in run.events(lambda event: event["seq"] == last) if event["type"] == event_type
    ]


def _wait_delivered(run: Run, message_id: str) -> None:
    found = run.wait_event("message_delivered", message_id=message_id)
    run.events(after=found["seq"])


@pytest.mark.parametrize("provider", ["de2generator", "openai"])
def test_messages_that_wait_are_delivered_in_order_one_turn_each(
    models: ModelServer, tmp_path: Path, key: str, provider: str
) -> None:
    url = models.url + ("/v1" if provider == "openai" else "")
    with LocalServer(tmp_path, url, llm_provider=provider) as server, gate("turn.before_finish") as end_of_the_first:
        run = server.api().start(say_done(key))
        end_of_the_first.wait_reached()
        sent = [run.say(f"message {number}\n{say_done(key)}") for number in range(4)]
        assert {answer["disposition"] for answer in sent} == {"queued"}
        ids = [answer["message_id"] for answer in sent]
        assert [message["message_id"] for message in _inbox(run)] == ids
        end_of_the_first.open()
        _wait_delivered(run, ids[-1])
        assert _inbox(run) == []
        assert _ids(run, "message_delivered") == ids
        assert [said["content"].split("\n")[0] for said in run.transcript()[2::2]] == [f"message {n}" for n in range(4)]
        five_checks(run, models, key)


def test_a_message_to_a_parked_run_starts_a_turn(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    answer = run.say(say_done(key))
    assert answer["disposition"] == "started"
    assert answer["turn_id"] not in (None, run.first_turn)
    run.wait_parked()
    five_checks(run, models, key)


def test_by_default_a_stop_keeps_what_waits_and_it_goes_before_the_next_message(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(any_server.api(), models, key)
    kept = [run.say(f"{number}\n{say_done(key)}")["message_id"] for number in range(2)]
    assert run.cancel(wait_ms=30_000)["state"] == "awaiting_input"
    assert [(each["message_id"], each["held"]) for each in _inbox(run)] == [(name, True) for name in kept]
    last = run.say(say_done(key))
    assert last["disposition"] == "queued"
    _wait_delivered(run, last["message_id"])
    assert _ids(run, "message_delivered") == [*kept, last["message_id"]]
    five_checks(run, models, key)


def test_a_stop_can_hand_back_what_waits(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(any_server.api(), models, key)
    sent = [run.say(f"words {number}")["message_id"] for number in range(2)]
    run.cancel(inbox="return", wait_ms=30_000)
    assert _inbox(run) == []
    returned = [event for event in run.events() if event["type"] == "message_returned"]
    assert [(event["message_id"], event["text"]) for event in returned] == [
        (name, f"words {number}") for number, name in enumerate(sent)
    ]
    five_checks(run, models, key)
    assert _ids(run, "message_delivered")[:-1] == []


def test_a_stop_can_drop_what_waits(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(any_server.api(), models, key)
    sent = [run.say(f"words {number}")["message_id"] for number in range(2)]
    run.cancel(inbox="drop", wait_ms=30_000)
    assert _inbox(run) == []
    assert _ids(run, "message_withdrawn") == sent
    five_checks(run, models, key)
    assert "words" not in str([said["content"] for said in run.transcript()])


def test_the_end_of_a_run_hands_back_what_waits(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key)
    sent = [run.say(f"words {number}")["message_id"] for number in range(2)]
    run.terminate(wait_ms=30_000)
    assert _ids(run, "message_returned") == sent
    five_checks(run, models, key)


def test_a_message_that_comes_while_the_turn_unwinds_starts_the_next_turn_after_what_was_kept(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    kept = run.say(f"kept\n{say_done(key)}")["message_id"]
    with gate("turn.before_finish") as unwinding:
        run.cancel()
        unwinding.wait_reached()
        late = run.say(f"late\n{say_done(key)}")
        assert (run.state, late["disposition"]) == ("stopping", "queued")
    _wait_delivered(run, late["message_id"])
    assert _ids(run, "message_delivered") == [kept, late["message_id"]]
    five_checks(run, models, key)


def test_a_message_that_comes_while_the_model_server_is_being_asked_to_cancel_starts_the_next_turn(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(server.api(), models, key, cancel="deaf")
    other = seen_at(server, run)
    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(other.cancel)
        models.wait_asked(1, key=key)
        late = run.say(say_done(key))
        assert stop.result()["stopped"] is True
    _wait_delivered(run, late["message_id"])
    assert run.wait_parked() == "awaiting_input"
    assert _inbox(run) == []
    five_checks(run, models, key)


def test_a_stop_that_drops_leaves_what_was_said_after_it(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(server.api(), models, key, cancel="deaf")
    before = run.say("said before")["message_id"]
    other = seen_at(server, run)
    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(other.cancel, inbox="drop")
        models.wait_asked(1, key=key)
        after = run.say(say_done(key))["message_id"]
        assert stop.result()["stopped"] is True
    _wait_delivered(run, after)
    assert _ids(run, "message_withdrawn") == [before]
    five_checks(run, models, key)


def test_a_message_that_is_sent_twice_counts_once(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(any_server.api(), models, key)
    waiting = run.say(say_done(key), client_message_id="one")
    again = run.say(say_done(key), client_message_id="one")
    assert (again["disposition"], again["message_id"]) == ("duplicate", waiting["message_id"])
    assert len(_inbox(run)) == 1
    run.cancel(wait_ms=30_000)
    started = run.say(say_done(key), client_message_id="two")
    _wait_delivered(run, started["message_id"])
    assert run.say(say_done(key), client_message_id="two")["disposition"] == "duplicate"
    assert run.say(say_done(key), client_message_id="one")["turn_id"] is not None
    assert _ids(run, "message_delivered") == [waiting["message_id"], started["message_id"]]
    five_checks(run, models, key)


def test_one_message_that_is_sent_ten_times_at_once_counts_once(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = server.api().start(say_done(key))
    run.wait_parked()
    apis = [server.api() for _ in range(10)]
    body = {"text": say_done(key), "client_message_id": "same"}
    answers = in_threads(10, lambda number: apis[number].post(f"{run.path}/input", body, expect=202))
    assert sorted(answer["disposition"] for answer in answers) == ["duplicate"] * 9 + ["started"]
    assert len({answer["message_id"] for answer in answers}) == 1
    run.wait_parked()
    assert len(run.transcript()) == 4
    five_checks(run, models, key)


def test_a_message_for_a_turn_that_is_over_is_refused(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    new = run.say(script("silent", key=f"{key}-2"))["turn_id"]
    body = {"text": "too late", "if_turn": run.first_turn}
    assert api.post(f"{run.path}/input", body, expect=409)["code"] == "turn_is_over"
    assert run.say(say_done(key), if_turn=new)["disposition"] == "queued"
    run.cancel(if_turn=new, inbox="drop")
    five_checks(run, models, f"{key}-2")


def test_a_full_queue_says_so_and_when_to_come_back(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key)
    for number in range(100):
        run.say(f"{number}")
    refused = api.request("POST", f"{run.path}/input", json={"text": "one more"})
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert int(refused.headers["Retry-After"]) > 0
    run.cancel(inbox="drop")
    five_checks(run, models, key)
