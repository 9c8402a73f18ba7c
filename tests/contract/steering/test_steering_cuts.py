"""An answer that a redirect cuts off: whatever the gateway makes of it, nothing of it comes after the correction."""

import pytest

from tests.support.api_client import Api
from tests.support.five_checks import five_checks
from tests.support.going_back import NOTE, of_type, system_of
from tests.support.message_fates import Fate, end_of, fate_of, shape, text_of_turn, wait_settled
from tests.support.message_matrix import BEFORE_FIRST
from tests.support.model_server import ModelServer, script
from tests.support.own_tools import stages
from tests.support.problems import assert_problem
from tests.support.servers import gate
from tests.support.steering import (
    CUT_SILENT,
    brief,
    endless,
    said_in,
    start_endless,
    wait_text_after,
)

ENDLESS = {"tokens": 4000, "interval_ms": 20}


@pytest.mark.parametrize(
    ("line", "ends_by"),
    [
        (script("deaf", **ENDLESS), "client_gone"),
        (script("refuse_cancel", **ENDLESS), "client_gone"),
        (script("late", **ENDLESS, end="finish"), "finished"),
        (script("late", **ENDLESS, end="499"), "cancelled"),
    ],
    ids=["deaf", "refuses", "finishes late", "ends late"],
)
def test_what_a_gateway_says_after_the_cut_is_heard_by_nobody(
    user: Api, models: ModelServer, key: str, line: str, ends_by: str
) -> None:
    run = user.start(f"work\n{line} key={key}")
    run.wait_event("text", text="t2 ")
    sent = run.say(text := brief(key, "no"), mode="redirect")
    assert sent["disposition"] == "redirected"
    wait_settled(run, sent["message_id"])
    first, again = models.wait_open(0, key=key)
    assert (first.close_reason, again.status) == (ends_by, 200)
    prompt, partial, correction = said_in(again)
    assert (prompt, correction) == (first.last_user_text, text)
    assert text_of_turn(run, run.first_turn) == f"{partial}All messages are in order."
    assert "late" not in partial
    assert [each["content"] for each in run.transcript()][1:] == [partial, text, "All messages are in order."]
    five_checks(run, models, key)


def test_a_piece_that_was_on_its_way_when_its_answer_was_cut_off_is_not_shown(
    user: Api, models: ModelServer, key: str
) -> None:
    with gate(BEFORE_FIRST) as coming:
        run = user.start(endless(key))
        coming.wait_reached()
        sent = run.say(text := brief(key, "no"), mode="redirect")
        assert sent["disposition"] == "redirected"
    wait_settled(run, sent["message_id"])
    assert text_of_turn(run, run.first_turn) == "All messages are in order."
    assert said_in(models.calls(key=key)[-1]) == [endless(key), CUT_SILENT, text]
    five_checks(run, models, key)


def test_an_answer_that_is_cut_off_while_it_names_a_tool_calls_none(user: Api, models: ModelServer, key: str) -> None:
    line = script(
        "toolcall", name="until_told", arguments={"stage": key}, text=1, interval_ms=5000, tokens=2, key=key
    )  # fmt: skip
    run = user.start(f"work\n{line}")
    run.wait_event("text")
    sent = run.say(text := brief(key, "no tools"), mode="redirect")
    assert sent["disposition"] == "redirected"
    wait_settled(run, sent["message_id"])
    assert not stages[key].begun.is_set()
    assert of_type(run, "tool_call", "tool_result") == []
    assert said_in(models.calls(key=key)[-1]) == [f"work\n{line}", "I will use a tool. ", text]
    five_checks(run, models, key)


def test_a_correction_is_no_stop_to_the_next_turn(user: Api, models: ModelServer, key: str) -> None:
    run = start_endless(user, key)
    wait_settled(run, run.say(brief(key, "no"), mode="redirect")["message_id"])
    five_checks(run, models, key)
    last = models.calls(key=key)[-1]
    assert shape(last.messages) == "UAUAU"
    assert NOTE not in system_of(last)


def test_a_plan_is_made_again_three_times_and_then_no_more(user: Api, models: ModelServer, key: str) -> None:
    silent = script("silent", on="plan", key=key)
    run = user.start(f"work\n{silent}", planning="auto")
    models.wait_open(1, key=key)
    sent = []
    for number in range(3):
        answer = run.say(f"no {number}\n{silent}", mode="redirect")
        assert answer["disposition"] == "redirected"
        sent.append(answer["message_id"])
        models.wait_calls(number + 2, key=key)
        models.wait_open(1, key=key)
    body = {"text": "no 3", "mode": "redirect"}
    assert_problem(user.request("POST", f"{run.path}/input", json=body), 409, "redirect_limit")
    assert len(models.wait_open(1, key=key)) == 4
    joined = "\n\n".join(f"no {number}\n{silent}" for number in range(3))
    assert said_in(models.calls(key=key)[-1]) == [f"work\n{silent}", CUT_SILENT, joined]
    run.cancel(wait_ms=20_000)
    assert [fate_of(run, each).position for each in sent] == [1, 2, 3]
    assert shape(run.transcript()) == "UAUA"
    five_checks(run, models, key)


@pytest.mark.parametrize("mode", ["queue", "steer", "redirect", "interrupt"])
def test_a_message_for_a_turn_that_is_over_is_refused_and_disturbs_nobody(
    user: Api, models: ModelServer, key: str, mode: str
) -> None:
    run = user.start(brief(key, "before"))
    run.wait_parked()
    body = {"text": "no", "mode": mode, "if_turn": run.first_turn}
    assert_problem(user.request("POST", f"{run.path}/input", json=body), 409, "turn_is_over")
    assert (run.state, len(run.transcript())) == ("awaiting_input", 2)
    turn_id = run.say(endless(key))["turn_id"]
    run.wait_event("text", turn_id=turn_id)
    assert_problem(user.request("POST", f"{run.path}/input", json=body), 409, "turn_is_over")
    _, answering = models.calls(key=key)
    assert (answering.is_open, answering.asked_to_cancel_at, run.inbox()) == (True, None, [])
    sent = run.say(brief(key, "yes"), mode=mode, if_turn=turn_id)
    run.cancel(wait_ms=20_000) if mode in ("queue", "steer") else wait_settled(run, sent["message_id"])
    five_checks(run, models, key)


@pytest.mark.parametrize("mode", [None, "queue", "steer", "redirect", "interrupt"])
def test_a_batch_run_takes_no_messages(user: Api, models: ModelServer, key: str, mode: str | None) -> None:
    run = user.start(endless(key), interactive=False)
    run.wait_event("text", text="t2 ")
    body = {"text": "no"} | ({"mode": mode} if mode else {})
    assert_problem(user.request("POST", f"{run.path}/input", json=body), 409, "not_interactive")
    assert [call.asked_to_cancel_at for call in models.calls(key=key)] == [None]
    run.terminate(wait_ms=20_000)
    assert of_type(run, "message_queued") == []
    five_checks(run, models, key, is_batch=True)


def test_what_waits_to_go_in_is_handed_back_at_the_end_of_the_run(user: Api, models: ModelServer, key: str) -> None:
    run = start_endless(user, key)
    cut = run.say(endless(key, "no"), mode="redirect")["message_id"]
    wait_text_after(run, cut)
    waits = run.say(brief(key, "shorter"), mode="steer")["message_id"]
    assert run.terminate(wait_ms=20_000)["inbox"]["returned"] == [waits]
    assert (fate_of(run, cut), fate_of(run, waits)) == (Fate("delivered", run.first_turn, 1), Fate("returned"))
    assert end_of(run, run.first_turn)["type"] == "turn_cancelled"
    five_checks(run, models, key)
