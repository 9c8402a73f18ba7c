"""The rules of messages to a turn at work: how often, in which order, what a repetition does, what is recorded."""

from typing import Any

import pytest

from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.message_fates import Fate, end_of, fate_of, message_of, text_of_turn, wait_settled
from tests.support.message_matrix import MODES
from tests.support.model_server import ModelServer, script
from tests.support.own_tools import stages
from tests.support.plans import say_done
from tests.support.problems import assert_problem
from tests.support.servers import LocalServer, gate
from tests.support.steering import (
    CUT_SILENT,
    NOT_ANSWERED,
    asked_by,
    brief,
    delivered_in,
    endless,
    said_in,
    start_endless,
    start_tool,
    tool_line,
    wait_text_after,
)

# -- how often an answer is cut off -----------------------------------------------------------------


def _cut_three_times(run: Run, key: str) -> list[str]:
    sent = []
    for number in range(3):
        answer = run.say(endless(key, f"no {number}"), mode="redirect")
        assert answer["disposition"] == "redirected"
        sent.append(answer["message_id"])
        wait_text_after(run, sent[-1])
    return sent


def test_the_fourth_redirect_without_a_complete_answer_is_refused_and_the_model_goes_on(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_endless(user, key)
    sent = _cut_three_times(run, key)
    body = {"text": "no 3", "mode": "redirect"}
    assert_problem(user.request("POST", f"{run.path}/input", json=body), 409, "redirect_limit")
    assert run.inbox() == []
    answering = models.calls(key=key)[-1]
    assert (answering.is_open, answering.asked_to_cancel_at) == (True, None)
    models.wait_tokens(sum(call.tokens_sent for call in models.calls(key=key)) + 3, key=key)
    steered = run.say(brief(key, "go on"), mode="steer")  # it goes in when the model is done; here, that is never
    run.cancel(wait_ms=20_000, inbox="return")
    assert [fate_of(run, each) for each in sent] == [Fate("delivered", run.first_turn, number) for number in (1, 2, 3)]
    assert fate_of(run, steered["message_id"]).state == "returned"
    assert len(of_type(run, "message_queued")) == 4
    assert [each["role"] for each in run.transcript()] == ["user", "assistant"] * 4
    five_checks(run, models, key)


def test_an_answer_that_came_to_its_end_lets_redirects_cut_again(user: Api, models: ModelServer, key: str) -> None:
    run = start_endless(user, key)
    for number in range(2):
        wait_text_after(run, run.say(endless(key, f"no {number}"), mode="redirect")["message_id"])
    run.say(tool_line(key, key, "use the tool"), mode="redirect")
    stages[key].wait_begun()
    steered = run.say(endless(key, "and now"), mode="steer")
    stages[key].go.set()
    wait_text_after(run, steered["message_id"])
    sent = _cut_three_times(run, key)
    body = {"text": "no", "mode": "redirect"}
    assert_problem(user.request("POST", f"{run.path}/input", json=body), 409, "redirect_limit")
    run.cancel(wait_ms=20_000)
    assert fate_of(run, sent[-1]) == Fate("delivered", run.first_turn, 7)
    five_checks(run, models, key)


# -- where a redirect finds no answer -----------------------------------------------------------------


def test_a_redirect_during_the_wait_for_a_retry_goes_into_the_next_attempt(
    user: Api, models: ModelServer, key: str
) -> None:
    with gate("agent.after_failure") as failed:
        run = user.start(script("busy", times=1, retry_after_s=0, key=key))
        failed.wait_reached()
        sent = run.say(text := brief(key, "no"), mode="redirect")
        assert sent["disposition"] == "steered"
    wait_settled(run, sent["message_id"])
    refused, again = models.calls(key=key)
    assert (refused.status, again.status) == (429, 200)
    assert said_in(again) == [refused.last_user_text, NOT_ANSWERED, text]
    assert fate_of(run, sent["message_id"]) == Fate("delivered", run.first_turn, 1)
    assert len(of_type(run, "retry")) == 1
    five_checks(run, models, key)


def test_what_a_model_thought_before_it_was_cut_off_is_shown_and_never_sent(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(script("trickle", reasoning=4000, interval_ms=20, key=key))
    run.wait_event("reasoning", text="r2 ")
    sent = run.say(text := brief(key, "no"), mode="redirect")
    assert sent["disposition"] == "redirected"
    wait_settled(run, sent["message_id"])
    first, again = models.calls(key=key)
    assert first.close_reason == "cancelled"
    assert said_in(again) == [first.last_user_text, CUT_SILENT, text]
    assert [each["text"] for each in of_type(run, "reasoning")][:2] == ["r1 ", "r2 "]
    five_checks(run, models, key)


# -- what is written down of a cut ------------------------------------------------------------------


def test_the_answer_that_a_redirect_cut_off_is_in_the_usage_and_is_nobodys_stop(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_endless(user, key)
    sent = run.say(brief(key, "no"), mode="redirect")
    wait_settled(run, sent["message_id"])
    partial, whole = of_type(run, "usage")
    assert (partial["partial"], whole["partial"]) == (True, False)
    assert partial["call_id"] != whole["call_id"]
    assert partial["output_tokens"] >= 2
    end = end_of(run, run.first_turn)
    assert (end["type"], end["usage"]["calls"]) == ("turn_completed", 2)
    assert end["usage"]["output_tokens"] == partial["output_tokens"] + whole["output_tokens"]
    assert of_type(run, "stop_requested", "retry") == []
    assert user.get(f"{run.path}/receipts")["receipts"] == []
    assert [event.get("cause") for event in of_type(run, "goal_status")] == [None, None]
    assert not any("cause" in each or "stopped" in each for each in run.transcript())
    shown = text_of_turn(run, run.first_turn)
    assert shown == "".join(each["content"] for each in run.transcript() if each["role"] == "assistant")
    five_checks(run, models, key)


# -- what a message without a mode means -------------------------------------------------------------------

BUSY = {"queue": "queued", "steer": "steered", "redirect": "redirected", "interrupt": "interrupted"}


@pytest.mark.parametrize("busy_mode", MODES)
def test_the_mode_of_the_run_holds_for_messages_without_one(
    user: Api, models: ModelServer, key: str, busy_mode: str
) -> None:
    run = start_endless(user, key, busy_mode=busy_mode)
    sent = run.say(endless(key, "next"))
    assert sent["disposition"] == BUSY[busy_mode]
    assert message_of(run, sent["message_id"])["mode"] == busy_mode
    if busy_mode == "interrupt":
        run.wait_event("turn_started", message_id=sent["message_id"])
    explicit = run.say("not like that", mode="steer" if busy_mode == "queue" else "queue")
    assert explicit["disposition"] == ("steered" if busy_mode == "queue" else "queued")
    assert run.cancel(wait_ms=20_000, inbox="drop")["state"] == "awaiting_input"
    assert fate_of(run, explicit["message_id"]).state == "withdrawn"
    assert run.say(brief(key, "on"))["disposition"] == "started"
    five_checks(run, models, key)


def test_a_run_that_rejects_takes_what_says_its_mode_and_what_comes_while_it_waits(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_endless(user, key, busy_mode="reject")
    assert_problem(user.request("POST", f"{run.path}/input", json={"text": "now?"}), 409, "run_is_busy")
    assert run.inbox() == []
    sent = run.say(brief(key, "no"), mode="redirect")
    assert sent["disposition"] == "redirected"
    wait_settled(run, sent["message_id"])
    assert run.say(brief(key, "on"))["disposition"] == "started"
    run.wait_parked()
    assert len(of_type(run, "message_queued")) == 1
    five_checks(run, models, key)


def test_while_a_turn_is_stopping_a_run_that_rejects_takes_a_message_for_the_next_one(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_endless(user, key, busy_mode="reject")
    with gate("turn.before_finish") as unwinding:
        run.cancel()
        unwinding.wait_reached()
        sent = run.say(brief(key, "on"), if_turn=run.first_turn)
        assert (run.state, sent["disposition"]) == ("stopping", "queued")
    wait_settled(run, sent["message_id"])
    run.wait_parked()
    assert fate_of(run, sent["message_id"]).position == 0
    five_checks(run, models, key)


# -- the same message again -------------------------------------------------------------------------


def test_a_repetition_of_a_message_does_nothing_in_any_mode(user: Api, models: ModelServer, key: str) -> None:
    run = start_endless(user, key)
    sent: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        said = {"text": endless(key, mode), "mode": mode, "client_message_id": f"mine-{mode}"}
        first = run.say(**said)
        if mode in ("redirect", "interrupt"):
            run.wait_event("message_delivered", message_id=first["message_id"])
            models.wait_open(1, key=key)
        calls = len(models.calls(key=key))
        again = run.say(**said)
        assert (again["disposition"], again["message_id"]) == ("duplicate", first["message_id"])
        assert "receipt" not in again
        assert len(models.calls(key=key)) == calls
        sent[mode] = first
    assert run.state == "running"
    assert again["turn_id"] == run.view()["turn_id"] != run.first_turn
    assert [each.is_open for each in models.wait_closed(2, key=key)] == [False, False, True]
    run.cancel(wait_ms=20_000, inbox="return")
    assert len(of_type(run, "message_queued")) == len(MODES)
    assert len(of_type(run, "turn_cancelled")) == 2
    assert [fate_of(run, sent[mode]["message_id"]).state for mode in MODES] == [
        "returned", "delivered", "delivered", "delivered"
    ]  # fmt: skip
    five_checks(run, models, key)


@pytest.mark.parametrize("mode", ["redirect", "interrupt"])
def test_one_message_sent_many_times_at_once_cuts_off_one_answer(
    user: Api, talking: LocalServer, models: ModelServer, key: str, mode: str
) -> None:
    run = start_endless(user, key)
    text = endless(key, "no")

    def send(_: int) -> dict[str, Any]:
        own = talking.api(key)
        try:
            body = {"text": text, "mode": mode, "client_message_id": "one"}
            return own.post(f"{run.path}/input", body, expect=202)  # type: ignore[no-any-return]
        finally:
            own.close()

    answers = in_threads(5, send)
    assert len({each["message_id"] for each in answers}) == 1
    assert sorted(each["disposition"] for each in answers) == sorted(["duplicate"] * 4 + [f"{mode.rstrip('e')}ed"])
    wait_text_after(run, answers[0]["message_id"])
    assert [call.is_open for call in models.wait_closed(1, key=key)] == [False, True]
    run.cancel(wait_ms=20_000)
    five_checks(run, models, key)


# -- among others ------------------------------------------------------------------------------


def test_an_interrupt_goes_before_all_that_waits(user: Api, models: ModelServer, key: str) -> None:
    run, _ = start_tool(user, key)
    steered = run.say(brief(key, "steer"), mode="steer")
    queued = [run.say(brief(key, f"queue {number}")) for number in range(2)]
    sent = run.say(brief(key, "at once"), mode="interrupt")
    assert sent["disposition"] == "interrupted"
    wait_settled(run, queued[-1]["message_id"])
    # What was to steer the turn that is gone steers the one in its place.
    assert delivered_in(run) == [
        (sent["message_id"], 0), (steered["message_id"], 1), *((each["message_id"], 0) for each in queued)
    ]  # fmt: skip
    for each in (sent, steered, *queued):
        fate_of(run, each["message_id"])
    five_checks(run, models, key)


def test_steers_go_in_together_in_the_order_in_which_they_came(user: Api, models: ModelServer, key: str) -> None:
    run, at = start_tool(user, key)
    texts = [brief(key, f"word {number}") for number in range(3)]
    sent = [run.say(text, mode="steer")["message_id"] for text in texts]
    at.go.set()
    wait_settled(run, sent[-1])
    assert delivered_in(run) == [(each, number) for number, each in enumerate(sent, 1)]
    assert [fate_of(run, each).position for each in sent] == [1, 2, 3]
    assert models.calls(key=key)[-1].messages[-1]["content"] == "\n\n".join(texts)
    five_checks(run, models, key)


def test_a_steer_that_is_withdrawn_before_it_went_in_is_never_seen_by_the_model(
    user: Api, models: ModelServer, key: str
) -> None:
    run, at = start_tool(user, key)
    gone, stays = (run.say(brief(key, word), mode="steer")["message_id"] for word in ("gone", "stays"))
    assert user.request("DELETE", f"{run.path}/inbox/{gone}").status_code == 200
    at.go.set()
    wait_settled(run, stays)
    assert (fate_of(run, gone).state, fate_of(run, stays).position) == ("withdrawn", 1)
    assert asked_by(models, key, "gone") == []
    assert "gone" not in str([call.messages for call in models.calls(key=key)])
    assert user.request("DELETE", f"{run.path}/inbox/{stays}").status_code == 409
    five_checks(run, models, key)


def test_a_redirect_that_is_withdrawn_before_the_model_is_asked_again_is_never_seen_by_it(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(endless(key))
    run.wait_event("text", text="t2 ")
    with gate("agent.before_request") as asking:
        sent = run.say(brief(key, "gone"), mode="redirect")
        asking.wait_reached()
        assert sent["disposition"] == "redirected"
        assert user.request("DELETE", f"{run.path}/inbox/{sent['message_id']}").status_code == 200
    _, again = models.wait_calls(2, key=key)
    assert [each["role"] for each in again.messages[1:]] == ["user"], "without a correction it is asked as before"
    last = run.say(say_done(key), mode="redirect")
    assert last["disposition"] == "redirected"
    wait_settled(run, last["message_id"])
    assert fate_of(run, sent["message_id"]).state == "withdrawn"
    assert fate_of(run, last["message_id"]) == Fate("delivered", run.first_turn, 1)
    assert end_of(run, run.first_turn)["type"] == "turn_completed"
    assert "gone" not in str([call.messages for call in models.calls(key=key)])
    (withdrawn,) = of_type(run, "message_withdrawn")
    assert withdrawn["message_id"] == sent["message_id"]
    five_checks(run, models, key)
