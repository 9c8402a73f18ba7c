"""The order of messages to a turn at work is the user's: they go in as the answer to a move has told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.message_fates import fate_of, wait_settled
from tests.support.model_server import ModelServer
from tests.support.race_kit import Later
from tests.support.servers import Gate, gate
from tests.support.steering import brief, delivered_in, start_tool, tool_line


def _move(run: Run, message_id: str, position: int, expect: int = 200) -> list[str]:
    """Over a connection of its own: the test uses the other one meanwhile. The new order, or the code of the refusal."""
    api = Api(run.api.url, run.api.token)
    answer = api.request("PATCH", f"{run.path}/inbox/{message_id}", json={"position": position})
    assert answer.status_code == expect, answer.text
    body = answer.json()
    return [each["message_id"] for each in body["messages"]] if expect == 200 else [body["code"], body["state"]]


def _steer(run: Run, key: str, *words: str) -> list[str]:
    return [run.say(brief(key, word), mode="steer")["message_id"] for word in words]


def test_steers_that_were_moved_go_in_as_they_were_put(user: Api, models: ModelServer, key: str) -> None:
    run, at = start_tool(user, key)
    one, two, three = _steer(run, key, "one", "two", "three")
    assert _move(run, three, 0) == [three, one, two]
    assert _move(run, one, 99) == [three, two, one]
    (four,) = _steer(run, key, "four")
    at.go.set()
    wait_settled(run, four)
    assert delivered_in(run) == [(three, 1), (two, 2), (one, 3), (four, 4)]
    texts = [brief(key, word) for word in ("three", "two", "one", "four")]
    assert models.calls(key=key)[-1].messages[-1]["content"] == "\n\n".join(texts)
    assert [fate_of(run, each).position for each in (three, two, one, four)] == [1, 2, 3, 4]
    five_checks(run, models, key)


@contextmanager
def _asking_meanwhile(run: Run, at: Any, message_id: str) -> Iterator[tuple[Later, Gate]]:
    """The message was put first, which is recorded and not answered yet; the turn was about to ask in the old order."""
    with gate("mail.moved") as recorded, gate("mail.waits_for_move") as asking:
        moving = Later(lambda: _move(run, message_id, 0))
        recorded.wait_reached()
        at.go.set()
        asking.wait_reached()
        asking.open()
        yield moving, recorded


def test_a_request_that_comes_between_the_move_and_its_answer_takes_them_in_the_new_order(
    user: Api, models: ModelServer, key: str
) -> None:
    run, at = start_tool(user, key)
    one, two = _steer(run, key, "one", "two")
    with _asking_meanwhile(run, at, two) as (moving, recorded):
        recorded.open()
        assert moving.result() == [two, one]
    wait_settled(run, one)
    assert delivered_in(run) == [(two, 1), (one, 2)]
    five_checks(run, models, key)


def test_a_stop_while_a_turn_waits_for_the_new_order_holds_and_leaves_that_order(
    user: Api, models: ModelServer, key: str
) -> None:
    run, at = start_tool(user, key)
    one, two = _steer(run, key, "one", "two")
    with _asking_meanwhile(run, at, two) as (moving, recorded):
        answer = run.cancel(wait_ms=30_000)
        assert (answer["stopped"], answer["parked"], answer["inbox"]["kept"]) == (True, True, [two, one])
        recorded.open()
        assert moving.result() == [two, one]
    assert [each["message_id"] for each in run.inbox()] == [two, one]
    five_checks(run, models, key)


def test_what_is_on_its_way_into_the_turn_is_not_moved_any_more(user: Api, models: ModelServer, key: str) -> None:
    run, at = start_tool(user, key)
    one, two = _steer(run, key, "one", "two")
    with gate("mail.before_confirmation") as on_their_way:
        at.go.set()
        on_their_way.wait_reached()
        assert _move(run, two, 0, expect=409) == ["message_is_settled", "delivered"]
        on_their_way.open()
    wait_settled(run, two)
    assert delivered_in(run) == [(one, 1), (two, 2)]
    five_checks(run, models, key)


def test_a_turn_that_begins_at_the_moment_of_a_move_knows_the_new_order(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(brief(key, "first"))
    run.wait_parked()
    with gate("engine.accepted") as accepted:
        starting = Later(lambda: Api(user.url, user.token).post(f"{run.path}/input", {"text": tool_line(key, key)}, 202))
        accepted.wait_reached()  # the turn is recorded, and nobody here knows it
        one, two = _steer(run, key, "one", "two")
        with gate("talking.before_move") as moving, gate("mail.before_delivery") as asking:
            moved = Later(lambda: _move(run, two, 0))
            moving.wait_reached()
            accepted.open()
            starting.result()
            asking.wait_reached()  # it has begun with the old order
            moving.open()
            assert moved.result() == [two, one]
            asking.open()
            wait_settled(run, one)
            wait_settled(run, two)
    assert [each for each in delivered_in(run) if each[1]] == [(two, 1), (one, 2)]
    five_checks(run, models, key)
