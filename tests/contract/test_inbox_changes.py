"""Messages that wait are shown, withdrawn and put into another order, by their user, over HTTP."""

from typing import Any

import pytest
from pydantic import BaseModel

from api import answers, inbox_answers
from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import all_events, delivered_up_to, say_done, start_silent
from tests.support.problems import assert_problem
from tests.support.servers import ServerProcess


def _ask(run: Run, method: str, message_id: str, shape: type[BaseModel], **options: Any) -> Any:
    answer = run.api.request(method, f"{run.path}/inbox/{message_id}", **options)
    assert answer.status_code == 200, answer.text
    shape.model_validate_json(answer.text, strict=True, extra="forbid")
    return answer.json()


def _show(run: Run, message_id: str) -> dict[str, Any]:
    return _ask(run, "GET", message_id, inbox_answers.MessageView)  # type: ignore[no-any-return]


def _withdraw(run: Run, message_id: str) -> dict[str, Any]:
    return _ask(run, "DELETE", message_id, inbox_answers.MessageWithdrawn)  # type: ignore[no-any-return]


def _move(run: Run, message_id: str, position: int) -> list[str]:
    answer = _ask(run, "PATCH", message_id, inbox_answers.Inbox, json={"position": position})
    assert answer["messages"] == run.inbox()
    return [each["message_id"] for each in answer["messages"]]


def _fates(policy: str, **lists: list[str]) -> dict[str, Any]:
    return {"policy": policy, "kept": [], "returned": [], "withdrawn": [], **lists}


def test_a_message_that_waits_is_withdrawn_and_the_next_one_is_delivered_in_its_place(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(any_server.api(key), models, key)
    one, two = (run.say(f"{word}\n{say_done(key)}")["message_id"] for word in ("one", "two"))
    assert _withdraw(run, one) == {"message_id": one, "state": "withdrawn"}
    assert _withdraw(run, one) == {"message_id": one, "state": "withdrawn"}
    assert [each["message_id"] for each in run.inbox()] == [two]
    run.cancel(wait_ms=30_000)
    last = run.say(say_done(key))["message_id"]
    assert delivered_up_to(run, last) == [two, last]
    run.wait_parked()
    told = [event for event in all_events(run) if event["type"] == "message_withdrawn"]
    assert [(event["message_id"], event["turn_id"]) for event in told] == [(one, run.first_turn)]
    assert "one" not in str([said["content"] for said in run.transcript()])
    five_checks(run, models, key)


def test_a_message_shows_its_state_from_waiting_to_its_fate(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key)
    one, two = (run.say(f"{word}\n{say_done(key)}", mode="queue")["message_id"] for word in ("one", "two"))
    shown = _show(run, one)
    assert (shown["state"], shown["mode"], shown["goal_id"]) == ("queued", "queue", None)
    assert (shown["turn_id"], shown["position"], shown["settled_at"]) == (None, None, None)
    run.cancel(wait_ms=30_000)
    assert [_show(run, each)["state"] for each in (one, two)] == ["held", "held"]
    _withdraw(run, two)
    last = run.say(say_done(key))["message_id"]
    delivered_up_to(run, last)
    run.wait_parked()
    begun = [event for event in all_events(run) if event["type"] == "turn_started" and "message_id" in event]
    inputs = {event["turn_id"]: event["message_id"] for event in begun}
    for message_id in (one, last):
        shown = _show(run, message_id)
        assert (shown["state"], shown["position"], inputs[shown["turn_id"]]) == ("delivered", 0, message_id)
        assert shown["settled_at"] >= shown["created_at"]
    shown = _show(run, two)
    assert (shown["state"], shown["turn_id"], shown["position"]) == ("withdrawn", None, None)
    assert shown["settled_at"] is not None
    five_checks(run, models, key)


def test_messages_are_put_into_another_order_and_delivered_in_it(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(any_server.api(key), models, key)
    one, two, three = (run.say(f"{word}\n{say_done(key)}")["message_id"] for word in ("one", "two", "three"))
    assert _move(run, three, 0) == [three, one, two]
    assert _move(run, three, 0) == [three, one, two]
    assert _move(run, one, 99) == [three, two, one]
    run.cancel(wait_ms=30_000)
    assert _move(run, two, 0) == [two, three, one]
    last = run.say(say_done(key))["message_id"]
    assert delivered_up_to(run, last) == [two, three, one, last]
    run.wait_parked()
    moved = [event for event in all_events(run) if event["type"] == "message_moved"]
    assert [(event["message_id"], event["position"], event.get("turn_id")) for event in moved] == [
        (three, 0, run.first_turn), (one, 2, run.first_turn), (two, 0, None)
    ]  # fmt: skip
    five_checks(run, models, key)


def test_what_has_a_fate_is_refused_and_the_refusal_says_which(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key)
    returned, dropped = run.say("returned")["message_id"], run.say("dropped")["message_id"]
    _withdraw(run, dropped)
    run.cancel(inbox="return", wait_ms=30_000)
    delivered = run.say(say_done(key))["message_id"]
    run.wait_parked()
    cases = [("DELETE", returned, "returned"), ("DELETE", delivered, "delivered")]
    cases += [("PATCH", name, state) for name, state in (
        (returned, "returned"), (delivered, "delivered"), (dropped, "withdrawn")
    )]  # fmt: skip
    for method, message_id, state in cases:
        body = {"json": {"position": 0}} if method == "PATCH" else {}
        answer = api.request(method, f"{run.path}/inbox/{message_id}", **body)
        assert_problem(answer, 409, "message_is_settled")
        assert answer.json()["state"] == state
    assert "message_moved" not in [event["type"] for event in all_events(run)]
    five_checks(run, models, key)


def test_an_unknown_message_and_one_of_another_run_are_absent(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key)
    other = start_silent(api, models, key)
    foreign = other.say("of another run")["message_id"]
    for message_id in (foreign, "m_none", "%20"):
        for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"position": 0})):
            answer = api.request(method, f"{run.path}/inbox/{message_id}", **({"json": body} if body else {}))
            assert_problem(answer, 404, "not_found")
    assert [each["message_id"] for each in other.inbox()] == [foreign]
    for each in (run, other):
        each.cancel(inbox="drop")
    five_checks(run, models, key)


@pytest.mark.parametrize("body", [{}, {"position": -1}, {"position": "0"}, {"position": 1.5}, {"position": 0, "to": 1}])
def test_a_place_that_is_none_is_refused(api: Api, models: ModelServer, key: str, body: dict[str, Any]) -> None:
    run = start_silent(api, models, key)
    message_id = run.say("waits")["message_id"]
    assert_problem(api.request("PATCH", f"{run.path}/inbox/{message_id}", json=body), 422, "invalid_request")
    run.cancel(inbox="drop")
    five_checks(run, models, key)


# -- what a stop says of the inbox -------------------------------------------------------------


@pytest.mark.parametrize(("policy", "name"), [("keep", "kept"), ("return", "returned"), ("drop", "withdrawn")])
def test_a_stop_says_what_it_did_with_the_messages_in_its_answer_its_events_and_its_receipt(
    any_server: ServerProcess, models: ModelServer, key: str, policy: str, name: str
) -> None:
    run = start_silent(any_server.api(key), models, key)
    ids = [run.say(f"{number}\n{say_done(key)}")["message_id"] for number in range(2)]
    expected = _fates(policy, **{name: ids})
    answer = run.cancel(inbox=policy)
    assert answers.StopInbox.model_validate(answer["inbox"])
    assert answer["inbox"] == expected
    assert run.wait_event("stop_requested")["inbox"] == expected
    assert run.wait_event("turn_cancelled")["inbox"] == expected
    run.wait_parked()
    (receipt,) = run.api.get(f"{run.path}/receipts")["receipts"]
    assert receipt["inbox"] == expected
    states = {"kept": "held", "returned": "returned", "withdrawn": "withdrawn"}
    assert [_show(run, each)["state"] for each in ids] == [states[name]] * 2
    again = run.cancel()  # parked: what is held is kept for longer
    assert (again["stopped"], again["inbox"]) == (False, _fates("keep", kept=ids if policy == "keep" else []))
    five_checks(run, models, key)


def test_a_stop_of_a_parked_run_says_what_it_did_with_what_was_kept(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key)
    kept = run.say("kept")["message_id"]
    run.cancel(wait_ms=30_000)
    answer = run.cancel(inbox="return")
    assert (answer["stopped"], answer["inbox"]) == (False, _fates("return", returned=[kept]))
    assert _show(run, kept)["state"] == "returned"
    five_checks(run, models, key)


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_terminate_says_what_it_handed_back(api: Api, models: ModelServer, key: str, is_parked: bool) -> None:
    run = start_silent(api, models, key)
    ids = [run.say(f"{number}")["message_id"] for number in range(2)]
    if is_parked:
        run.cancel(wait_ms=30_000)
    answer = run.terminate(wait_ms=30_000)
    assert (answer["stopped"], answer["inbox"]) == (not is_parked, _fates("return", returned=ids))
    assert [_show(run, each)["state"] for each in ids] == ["returned", "returned"]
    assert run.terminate()["inbox"] is None  # it was over: nothing waited any more
    if not is_parked:
        assert run.wait_event("turn_cancelled")["inbox"] == answer["inbox"]
    five_checks(run, models, key)
