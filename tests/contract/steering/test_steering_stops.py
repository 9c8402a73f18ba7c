"""Messages to a turn that is stopped, lost with its server, or gone back to: none is lost, and none is there twice."""

from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks, wait_no_process
from tests.support.going_back import go_back, of_type
from tests.support.message_fates import Fate, bare, end_of, fate_of, message_of, shape, wait_settled
from tests.support.model_server import ModelServer, script
from tests.support.own_tools import stages
from tests.support.plans import all_events, goal, seen_at, start_plan
from tests.support.portable import comparable, export_session, import_session
from tests.support.questions import answer, ask_line, wait_question
from tests.support.race_kit import Later
from tests.support.servers import ServerProcess, gate
from tests.support.steering import (
    NOT_ANSWERED,
    asked_by,
    brief,
    delivered_in,
    endless,
    said_in,
    start_endless,
    start_tool,
    wait_text_after,
)
from tests.support.stop_matrix_stops import DEADLINE_MS, bring_forward

WAITING = {"keep": "held", "return": "returned", "drop": "withdrawn"}


def _steered_in(user: Api, key: str) -> tuple[Run, str, str]:
    """A run that answers a message which went in behind a tool; its id and text."""
    run, at = start_tool(user, key)
    text = endless(key, "shorter")
    message_id = run.say(text, mode="steer")["message_id"]
    at.go.set()
    wait_text_after(run, message_id)
    return run, message_id, text


# -- a stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(WAITING))
@pytest.mark.parametrize("mode", ["steer", "redirect"])
def test_what_has_not_gone_in_at_a_stop_is_kept_returned_or_dropped_as_the_stop_says(
    user: Api, models: ModelServer, key: str, mode: str, policy: str
) -> None:
    run, _ = start_tool(user, key)
    message_id = run.say(text := brief(key, "late"), mode=mode)["message_id"]
    stopped = run.cancel(inbox=policy, wait_ms=20_000)
    fates = {"kept": [], "returned": [], "withdrawn": []} | {WAITING[policy].replace("held", "kept"): [message_id]}
    assert stopped["inbox"] == {"policy": policy, **fates}
    assert end_of(run, run.first_turn)["inbox"] == stopped["inbox"]
    assert message_of(run, message_id)["state"] == WAITING[policy]
    assert asked_by(models, key, "late") == []
    following = run.say(brief(key, "on"))
    wait_settled(run, following["message_id"])
    if policy == "keep":
        assert delivered_in(run) == [(message_id, 0), (following["message_id"], 0)]
        assert fate_of(run, message_id).position == 0
        assert asked_by(models, key, "late")[0].messages[-1]["content"] == text
    else:
        assert following["disposition"] == "started"
        assert fate_of(run, message_id).state == WAITING[policy]
        assert asked_by(models, key, "late") == []
    five_checks(run, models, key)


def test_a_steer_that_waits_at_the_limit_of_its_turn_goes_before_the_next_message(
    user: Api, models: ModelServer, key: str
) -> None:
    run, _ = start_tool(user, key, deadline_ms=DEADLINE_MS)
    message_id = run.say(brief(key, "late"), mode="steer")["message_id"]
    bring_forward(DEADLINE_MS)
    run.wait_event("turn_cancelled", cause="deadline")
    assert run.wait_parked() == "awaiting_input"
    assert [each["message_id"] for each in run.inbox()] == [message_id]
    following = run.say(brief(key, "on"))
    wait_settled(run, following["message_id"])
    assert delivered_in(run) == [(message_id, 0), (following["message_id"], 0)]
    fate_of(run, message_id)
    five_checks(run, models, key)


def test_a_stop_that_comes_before_a_redirect_has_cut_wins(user: Api, models: ModelServer, key: str) -> None:
    run = start_endless(user, key)
    with gate("mail.before_cut") as cutting:
        sending = Later(lambda: run.say(brief(key, "no"), mode="redirect"))
        cutting.wait_reached()
        assert run.cancel(wait_ms=20_000)["state"] == "awaiting_input"
    sent = sending.result()
    assert sent["disposition"] == "steered"
    assert [len(models.calls(key=key)), end_of(run, run.first_turn)["cause"]] == [1, "user"]
    assert message_of(run, sent["message_id"])["state"] == "held"
    assert run.transcript()[-1]["cause"] == "user"
    wait_settled(run, run.say(brief(key, "on"))["message_id"])
    assert fate_of(run, sent["message_id"]).position == 0
    five_checks(run, models, key)


def test_a_stop_that_comes_after_a_redirect_has_cut_wins(user: Api, models: ModelServer, key: str) -> None:
    run = start_endless(user, key)
    with gate("agent.before_request") as asking:
        sent = run.say(brief(key, "no"), mode="redirect")
        asking.wait_reached()
        assert sent["disposition"] == "redirected"
        assert run.cancel(inbox="return")["inbox"]["returned"] == [sent["message_id"]]
    run.wait_parked()
    assert [len(models.calls(key=key)), end_of(run, run.first_turn)["cause"]] == [1, "user"]
    assert fate_of(run, sent["message_id"]).state == "returned"
    assert [each["role"] for each in run.transcript()] == ["user", "assistant"]
    five_checks(run, models, key)


@pytest.mark.parametrize("mode", ["steer", "redirect"])
def test_a_message_that_was_taken_and_not_sent_when_the_stop_came_is_in_the_transcript(
    user: Api, models: ModelServer, key: str, mode: str
) -> None:
    run, at = start_tool(user, key)
    message_id = run.say(text := brief(key, "shorter"), mode=mode)["message_id"]
    with gate("mail.before_confirmation") as taken:
        at.go.set()
        taken.wait_reached()
        run.wait_event("message_delivered", message_id=message_id)
        assert run.cancel(inbox="drop")["inbox"]["withdrawn"] == []
    run.wait_parked()
    assert asked_by(models, key, "shorter") == []
    assert fate_of(run, message_id) == Fate("delivered", run.first_turn, 1)
    assert [each["role"] for each in run.transcript()] == ["user", "assistant", "tool", "user", "assistant"]
    assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"
    five_checks(run, models, key)
    assert text in said_in(models.calls(key=key)[-1])


@pytest.mark.parametrize("mode", ["steer", "redirect"])
def test_a_message_that_is_being_taken_when_the_stop_is_recorded_waits_for_the_next_one(
    user: Api, models: ModelServer, key: str, mode: str
) -> None:
    run, at = start_tool(user, key)
    message_id = run.say(brief(key, "shorter"), mode=mode)["message_id"]
    with gate("mail.before_delivery") as taking:
        at.go.set()
        taking.wait_reached()
        assert run.cancel()["inbox"]["kept"] == [message_id]
    assert run.wait_parked() == "awaiting_input"
    assert [each["role"] for each in run.transcript()] == ["user", "assistant", "tool"]
    following = run.say(brief(key, "on"))
    wait_settled(run, following["message_id"])
    assert delivered_in(run) == [(message_id, 0), (following["message_id"], 0)]
    fate_of(run, message_id)
    five_checks(run, models, key)


# -- going back ---------------------------------------------------------------------------------------


def test_a_turn_that_is_resumed_still_has_what_went_into_it(user: Api, models: ModelServer, key: str) -> None:
    run, message_id, text = _steered_in(user, key)
    run.cancel(wait_ms=20_000)
    assert fate_of(run, message_id) == Fate("delivered", run.first_turn, 1)
    resumed = go_back(run, "resume")["turn_id"]
    again = models.wait_calls(3, key=key)[-1]
    assert shape(again.messages) == "UAU"
    assert said_in(again) == [models.calls(key=key)[0].last_user_text, NOT_ANSWERED, text]
    run.wait_event("text", turn_id=resumed)
    sent = run.say(brief(key, "enough"), mode="redirect")
    wait_settled(run, sent["message_id"])
    said = run.transcript()
    assert {each["turn_id"] for each in said} == {resumed}
    assert shape(said) == "UAUAUA"
    assert bare(models.calls(key=key)[-1].messages) == bare(said[:-1])
    assert [each["content"] for each in said].count(text) == 1
    assert len(_deliveries_of(run, message_id)) == 1
    five_checks(run, models, key)


def _deliveries_of(run: Run, message_id: str) -> list[dict[str, Any]]:
    return [event for event in of_type(run, "message_delivered") if event["message_id"] == message_id]


def test_a_plan_that_is_resumed_has_what_went_into_it_in_the_history_of_each_goal(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_plan(user, goal("a", endless(key, "a")), goal("b", brief(key, "b"), "a"))
    run.wait_event("text", goal_id="a")
    message_id = run.say(text := endless(key, "no"), mode="redirect")["message_id"]
    wait_text_after(run, message_id)
    run.cancel(wait_ms=20_000)
    fate_of(run, message_id)
    go_back(run, "resume")
    models.wait_calls(3, key=key)
    again = models.calls(key=key)[-1]
    assert said_in(again) == [text, NOT_ANSWERED, endless(key, "a")]
    sent = run.say(brief(key, "enough"), mode="redirect")
    wait_settled(run, sent["message_id"])
    (last,) = asked_by(models, key, "b")
    assert said_in(last) == [f"{text}\n\n{brief(key, 'enough')}", NOT_ANSWERED, brief(key, "b")]
    joined = [each["content"] for each in run.transcript() if each["role"] == "user"]
    assert joined == ["work on this", f"{text}\n\n{brief(key, 'enough')}"]
    five_checks(run, models, key)


@pytest.mark.parametrize("verb", ["rollback", "regenerate"])
def test_what_went_into_a_turn_that_is_taken_out_goes_with_it(
    user: Api, models: ModelServer, key: str, verb: str
) -> None:
    run, message_id, text = _steered_in(user, key)
    run.cancel(wait_ms=20_000)
    calls = len(models.calls(key=key))
    go_back(run, verb)
    if verb == "regenerate":
        stages[key].go.set()
        run.wait_event("turn_completed")
        run.wait_parked()
        assert run.transcript()[-1]["content"] == "t1 t2 "
    assert text not in [each["content"] for each in run.transcript()]
    assert message_of(run, message_id)["state"] == "delivered"
    assert len(_deliveries_of(run, message_id)) == 1
    five_checks(run, models, key)
    assert all("shorter" not in str(call.messages) for call in models.calls(key=key)[calls:])


# -- leaving a server -----------------------------------------------------------------------------


def test_an_export_has_what_went_into_a_turn_where_the_model_met_it(user: Api, models: ModelServer, key: str) -> None:
    run, _, text = _steered_in(user, key)
    waiting = run.say(brief(key, "later"))
    run.cancel(wait_ms=20_000)
    lines = export_session(user, run.session_id)
    (line,) = [line for line in lines if line["type"] == "message"]
    assert line["text"] == message_of(run, waiting["message_id"])["text"]
    taken_in = import_session(user, lines, f"?session_id={key}-again")
    assert comparable(export_session(user, taken_in.session_id)) == comparable(lines)
    said = [(each["role"], each["content"], each.get("cause")) for each in run.transcript()]
    assert [(each["role"], each["content"], each.get("cause")) for each in taken_in.transcript()] == said
    assert [content for _, content, _ in said].count(text) == 1
    five_checks(taken_in, models, key)
    five_checks(run, models, key)


def test_a_turn_that_was_taken_in_and_is_resumed_still_has_what_went_into_it(
    user: Api, models: ModelServer, key: str
) -> None:
    run, _, text = _steered_in(user, key)
    run.cancel(wait_ms=20_000)
    taken_in = import_session(user, export_session(user, run.session_id), f"?session_id={key}-again")
    go_back(taken_in, "resume")
    again = models.wait_calls(3, key=key)[-1]
    assert text in said_in(again)
    taken_in.cancel(wait_ms=20_000)
    assert [each["content"] for each in taken_in.transcript()].count(text) == 1
    five_checks(taken_in, models, key)


# -- kill -9 ------------------------------------------------------------------------------------


def _start_shell(server: ServerProcess, key: str, seconds: int) -> Run:
    """A run whose shell is at work for so long."""
    command = {"command": f"echo begun; sleep {seconds}"}
    run = server.api(key).start(f"work\n{script('toolcall', name='shell', arguments=command, tokens=2, key=key)}")
    run.wait_event("tool_output")
    return run


def _lost(server: ServerProcess, run: Run) -> Run:
    """The run as the next server has it when this one was killed."""
    server.kill()
    server.start()
    run = seen_at(server, run)
    assert run.wait_parked() == "awaiting_input"
    return run


def test_a_steer_that_had_not_gone_in_when_the_server_was_killed_goes_before_the_next_message(
    own_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    run = _start_shell(own_shell, key, seconds=300)
    message_id = run.say(text := brief(key, "late"), mode="steer")["message_id"]
    run = _lost(own_shell, run)
    wait_no_process(run)
    assert [each["message_id"] for each in run.inbox()] == [message_id]
    following = run.say(brief(key, "on"))
    wait_settled(run, following["message_id"])
    assert delivered_in(run) == [(message_id, 0), (following["message_id"], 0)]
    assert fate_of(run, message_id).position == 0
    assert asked_by(models, key, "late")[0].messages[-1]["content"] == text
    five_checks(run, models, key)


def test_messages_that_had_gone_in_when_the_server_was_killed_are_in_their_place_and_in_the_turn_that_is_resumed(
    own_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    run = _start_shell(own_shell, key, seconds=1)
    steered = run.say(first := endless(key, "shorter"), mode="steer")["message_id"]
    wait_text_after(run, steered)
    redirected = run.say(second := endless(key, "no"), mode="redirect")["message_id"]
    wait_text_after(run, redirected)
    run = _lost(own_shell, run)
    models.wait_open(0, key=key)
    said = run.transcript()
    assert (shape(said), said[3]["content"], said[5]["content"]) == ("UATUAUA", first, second)
    assert said[4]["content"].startswith("t1 ")
    assert said[6]["cause"] == "server_lost"
    assert [fate_of(run, each).position for each in (steered, redirected)] == [1, 2]
    calls = len(models.calls(key=key))
    go_back(run, "resume")
    again = models.wait_calls(calls + 1, key=key)[-1]
    assert said_in(again)[1:] == [NOT_ANSWERED, f"{first}\n\n{second}"]
    run.cancel(wait_ms=20_000)
    joined = [each["content"] for each in run.transcript() if each["role"] == "user"]
    assert joined == [run.transcript()[0]["content"], f"{first}\n\n{second}"]
    assert len(_deliveries_of(run, steered)) == len(_deliveries_of(run, redirected)) == 1
    five_checks(run, models, key)


def test_a_steer_that_waits_for_an_answer_goes_in_behind_it_also_in_the_next_server(
    models: ModelServer, tmp_path_factory: pytest.TempPathFactory, key: str
) -> None:
    with ServerProcess(tmp_path_factory.mktemp("asks"), models.url, TOOLS_ALLOWED="ask_user") as server:
        run = server.api(key).start(f"work\n{ask_line(key, 'Which colour?')}")
        question = wait_question(run)
        message_id = run.say(text := brief(key, "shorter"), mode="steer")["message_id"]
        server.kill()
        server.start()
        run = seen_at(server, run)
        assert run.state == "awaiting_answer"
        answer(run, question, "blue")
        wait_settled(run, message_id)
        assert fate_of(run, message_id) == Fate("delivered", run.first_turn, 1)
        asked = models.calls(key=key)[-1]
        assert shape(asked.messages) == "UATU"
        assert [each["content"] for each in asked.messages[-2:]] == ["blue", text]
        assert [event["type"] for event in all_events(run) if event["type"].startswith("turn_")] == [
            "turn_started", "turn_completed"
        ]  # fmt: skip
        five_checks(run, models, key)
