"""Messages that wait against what happens at the same moment: a stop, the turn's end, a withdrawal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from core.errors import MessageIsSettled
from core.session import inbox
from core.session.records import TurnStart
from tests.support.api_client import Api, Run, in_threads
from tests.support.core_kit import Store, open_store
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import delivered_up_to, say_done, start_silent
from tests.support.race_kit import Later
from tests.support.servers import Gate, LocalServer, gate
from tests.support.store_moves_kit import begin, finish, say, types_of

LISTS = {"keep": "kept", "return": "returned", "drop": "withdrawn"}
#: A message comes just before or after the stop is recorded, or just before or after the turn's end is.
MOMENTS = ("before the stop", "after the stop", "before the end", "after the end")


def _fates(policy: str, **lists: list[str]) -> dict[str, Any]:
    return {"policy": policy, "kept": [], "returned": [], "withdrawn": [], **lists}


def _state(run: Run, message_id: str) -> str:
    return str(run.api.get(f"{run.path}/inbox/{message_id}")["state"])


def _told(run: Run, answer: dict[str, Any]) -> dict[str, Any]:
    """What the stop's answer says of the messages, which is what its turn's end and its receipt say."""
    end = run.wait_event("turn_cancelled", turn_id=answer["turn_id"])
    (receipt,) = (
        each for each in run.api.get(f"{run.path}/receipts")["receipts"] if each["turn_id"] == answer["turn_id"]
    )
    assert end["inbox"] == receipt["inbox"] == answer["inbox"]
    return answer["inbox"]  # type: ignore[no-any-return]


@contextmanager
def _gates(*names: str) -> Iterator[list[Gate]]:
    with ExitStack() as stack:
        yield [stack.enter_context(gate(name)) for name in names]


def _stop_around(run: Run, api: Api, policy: str, moment: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stop the turn, and send a message at that moment; both answers."""
    def stop() -> dict[str, Any]:
        return api.post(f"{run.path}/cancel", {"inbox": policy})  # type: ignore[no-any-return]

    if moment == "before the stop":
        with gate("engine.before_stop") as arriving:
            stopping = Later(stop)
            arriving.wait_reached()
            said = run.say(text)
            arriving.open()
            return stopping.result(), said
    point = {"after the stop": "turn.before_finish", "before the end": "engine.before_final_write"}
    with gate(point.get(moment, "engine.after_final_write")) as unwinding:
        stopped = stop()
        unwinding.wait_reached()
        assert run.state == ("awaiting_input" if moment == "after the end" else "stopping")
        said = run.say(text)
        unwinding.open()
        return stopped, said


@pytest.mark.parametrize("policy", LISTS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_message_that_meets_a_stop_has_the_fate_that_the_stop_tells_in_each_order(
    local: LocalServer, models: ModelServer, key: str, policy: str, moment: str
) -> None:
    run = start_silent(local.api(), models, key)
    early = run.say(f"early\n{say_done(key)}")["message_id"]
    answer, said = _stop_around(run, local.api(), policy, moment, f"late\n{say_done(key)}")
    late, ids = said["message_id"], [early]
    if moment == "before the stop":
        ids.append(late)
    assert answer["stopped"] is True
    assert _told(run, answer) == _fates(policy, **{LISTS[policy]: ids})
    is_kept = policy == "keep"
    if moment == "before the stop":
        last = run.say(say_done(key))["message_id"]
        delivered = [*(ids if is_kept else []), last]
    else:
        delivered = [early, late] if is_kept else [late]
        assert said["disposition"] == ("started" if moment == "after the end" and not is_kept else "queued")
    assert delivered_up_to(run, delivered[-1]) == delivered
    run.wait_parked()
    gone = {"return": "returned", "drop": "withdrawn"}
    assert [_state(run, each) for each in ids] == [gone.get(policy, "delivered")] * len(ids)
    five_checks(run, models, key)


@pytest.mark.parametrize("policy", LISTS)
def test_a_stop_that_the_turns_own_end_has_forestalled_leaves_what_waits_to_the_next_turn(
    local: LocalServer, models: ModelServer, key: str, policy: str
) -> None:
    with _gates("engine.before_final_write", "engine.before_stop") as (decided, arriving):
        run = local.api().start(script("strict", key=key))
        decided.wait_reached()
        waits = run.say(script("strict", key=key))["message_id"]
        stop = Later(lambda: local.api().post(f"{run.path}/cancel", {"inbox": policy}))
        arriving.wait_reached()
        arriving.open()
        decided.open()
        answer = stop.result()
    assert (answer["stopped"], answer["inbox"]) == (False, None)
    delivered_up_to(run, waits)
    run.wait_parked()
    assert _state(run, waits) == "delivered"
    five_checks(run, models, key)


def test_ten_stops_at_once_tell_the_same_and_the_policy_of_the_one_that_came_first_stands(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    ids = [run.say(f"{number}")["message_id"] for number in range(3)]
    apis = [local.api() for _ in range(10)]
    policies = [list(LISTS)[number % 3] for number in range(10)]
    with gate("turn.before_finish"):  # all ten are of this turn
        told = in_threads(
            10, lambda number: apis[number].post(f"{run.path}/cancel", {"inbox": policies[number]})["inbox"]
        )
    policy = told[0]["policy"]
    assert told == [_fates(policy, **{LISTS[policy]: ids})] * 10
    run.wait_parked()
    states = {"keep": "held", "return": "returned", "drop": "withdrawn"}
    assert [_state(run, each) for each in ids] == [states[policy]] * 3
    if policy == "keep":
        run.cancel(inbox="drop")
    five_checks(run, models, key)


def test_a_terminate_that_joins_a_stop_hands_back_what_was_kept_and_the_receipt_says_so(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    ids = [run.say("before")["message_id"]]
    with gate("turn.before_finish") as unwinding:
        kept = run.cancel()["inbox"]
        unwinding.wait_reached()
        ids.append(run.say("between")["message_id"])
        ended = run.terminate()
        assert [_state(run, each) for each in ids] == ["returned", "returned"]
    assert kept == _fates("keep", kept=ids[:1])
    assert _told(run, ended) == _fates("return", returned=ids)
    five_checks(run, models, key)


def test_a_terminate_whose_record_comes_after_the_turns_end_tells_what_that_has_handed_back(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    ids = [run.say("before")["message_id"]]
    with gate("turn.before_finish") as unwinding:
        run.cancel()
        unwinding.wait_reached()
        with gate("engine.before_stop_is_recorded") as recording:
            terminate = Later(lambda: local.api().post(f"{run.path}/terminate"))
            recording.wait_reached()
            unwinding.open()
            assert run.wait_parked() == "cancelled"
            recording.open()
            ended = terminate.result()
    assert _told(run, ended) == _fates("return", returned=ids)
    assert [_state(run, each) for each in ids] == ["returned"]
    five_checks(run, models, key)


# -- a withdrawal and a delivery ------------------------------------------------------------------


@pytest.mark.parametrize("comes_first", ["the withdrawal", "the delivery"])
def test_a_withdrawal_at_the_edge_of_a_turn_happens_or_is_refused(
    local: LocalServer, models: ModelServer, key: str, comes_first: str
) -> None:
    is_first = comes_first == "the withdrawal"
    with _gates("engine.before_final_write", "engine.after_final_write") as (before, after):
        run = local.api().start(script("strict", key=key))
        before.wait_reached()
        message_id = run.say(script("strict", key=key))["message_id"]
        if not is_first:
            before.open()
            after.wait_reached()
        answer = run.api.request("DELETE", f"{run.path}/inbox/{message_id}")
        assert answer.status_code == (200 if is_first else 409), answer.text
    run.wait_parked()
    assert answer.json()["state"] == _state(run, message_id) == ("withdrawn" if is_first else "delivered")
    assert len(run.transcript()) == (2 if is_first else 4)
    five_checks(run, models, key)


def _is_withdrawn(store: Store, run_id: str, message_id: str) -> bool:
    try:
        store.decide(lambda tx: inbox.withdraw(tx, store.run(run_id), message_id))
    except MessageIsSettled as error:
        assert error.extra["state"] == "delivered"
        return False
    return True


def test_of_a_withdrawal_and_a_delivery_exactly_one_happens_whoever_is_quicker(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        turn = store.start()
        withdrawn = 0
        for number in range(300):
            begin(store, turn)
            message_id = say(store, turn, f"message {number}")[0]["message_id"]
            current = turn

            def race(index: int, turn: TurnStart = current, message_id: str = message_id) -> Any:
                return finish(store, turn)[1] if index else _is_withdrawn(store, turn.run_id, message_id)

            is_withdrawn, following = in_threads(2, race)
            assert is_withdrawn == (following is None)
            withdrawn += is_withdrawn
            turn = following or say(store, turn, "go on")[1]
            assert following is None or turn.input == f"message {number}"
        types = types_of(store, turn.run_id)
        assert types.count("message_withdrawn") == withdrawn
        assert types.count("message_delivered") == 300  # the message, or the one that goes on in its place
