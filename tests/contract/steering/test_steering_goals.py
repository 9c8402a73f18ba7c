"""A message to a turn with several goals: to all that ask a model, or to the one that it names; told once."""

import pytest

from tests.support.api_client import Api, Run
from tests.support.delegating import delegate_line, sub_goal
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.message_fates import Fate, fate_of, wait_settled
from tests.support.model_server import ModelServer, script
from tests.support.own_tools import stages
from tests.support.plans import goal, say_done, start_plan
from tests.support.problems import assert_problem
from tests.support.servers import LocalServer, gate
from tests.support.steering import (
    CUT_SILENT,
    NOT_ANSWERED,
    asked_by,
    brief,
    endless,
    said_in,
    tool_line,
)

ANSWER = "All messages are in order."


def _told(run: Run) -> tuple[int, dict[str, int]]:
    """Position of the one message that went into the turn, and the rounds of the goals that were told."""
    (event,) = [each for each in of_type(run, "message_delivered") if each["position"]]
    return event["position"], {each["goal_id"]: each["round"] for each in event["goals"]}


def _two_at_work(user: Api, key: str) -> Run:
    """Two goals answer, and a third waits for both."""
    later = goal("c", brief(key, "c"), "a", "b")
    run = start_plan(user, goal("a", endless(key, "a")), goal("b", endless(key, "b")), later)
    for name in ("a", "b"):
        run.wait_event("text", goal_id=name)
    return run


def test_a_redirect_without_a_goal_cuts_off_all_of_them_and_a_later_goal_has_it_in_its_history(
    user: Api, models: ModelServer, key: str
) -> None:
    run = _two_at_work(user, key)
    sent = run.say(text := brief(key, "no"), mode="redirect")
    assert sent["disposition"] == "redirected"
    wait_settled(run, sent["message_id"])
    assert fate_of(run, sent["message_id"]) == Fate("delivered", run.first_turn, 1)
    assert _told(run) == (1, {"a": 1, "b": 1})
    models.wait_open(0, key=key)
    cut = asked_by(models, key, "a") + asked_by(models, key, "b")
    assert [call.close_reason for call in cut] == ["cancelled", "cancelled"]
    asked = {said_in(call)[0][0]: said_in(call) for call in asked_by(models, key, "no")}
    for name in ("a", "b"):
        prompt, partial, correction = asked[name]
        assert (prompt, correction) == (endless(key, name), text)
        assert partial.startswith("t1 ")
    (later,) = asked_by(models, key, "c")
    assert said_in(later) == [text, NOT_ANSWERED, brief(key, "c")]
    assert [each["content"] for each in run.transcript()][1:3] == [NOT_ANSWERED, text]
    assert [each["role"] for each in run.transcript()] == ["user", "assistant", "user", "assistant"]
    assert run.transcript()[-1]["content"].count(ANSWER) == 3
    assert {each["status"] for each in run.goals().values()} == {"COMPLETED"}
    five_checks(run, models, key)


def test_a_redirect_of_one_goal_leaves_the_other_alone(user: Api, models: ModelServer, key: str) -> None:
    run = _two_at_work(user, key)
    sent = run.say(brief(key, "no"), mode="redirect", goal_id="a")
    assert sent["disposition"] == "redirected"
    run.wait_event("goal_status", goal_id="a", status="COMPLETED")
    (other,) = asked_by(models, key, "b")
    assert (other.is_open, other.asked_to_cancel_at) == (True, None)
    assert _told_now(run) == {"a": 1}
    last = run.say(brief(key, "enough"), mode="redirect", goal_id="b")
    wait_settled(run, last["message_id"])
    assert [fate_of(run, each["message_id"]).position for each in (sent, last)] == [1, 2]
    (later,) = asked_by(models, key, "c")
    joined = "\n\n".join((brief(key, "no"), brief(key, "enough")))
    assert said_in(later) == [joined, NOT_ANSWERED, brief(key, "c")]
    five_checks(run, models, key)


def _told_now(run: Run) -> dict[str, int]:
    event = run.wait_event("message_delivered", position=1)
    return {each["goal_id"]: each["round"] for each in event["goals"]}


def test_a_steer_to_all_goes_in_behind_the_tools_of_each_goal_and_is_one_event(
    user: Api, models: ModelServer, key: str
) -> None:
    lines = {name: tool_line(key, f"{key}-{name}", name) for name in ("a", "b")}
    run = start_plan(user, *(goal(name, line) for name, line in lines.items()))
    for name in lines:
        stages[f"{key}-{name}"].wait_begun()
    sent = run.say(text := brief(key, "shorter"), mode="steer")
    assert sent["disposition"] == "steered"
    stages[f"{key}-a"].go.set()
    run.wait_event("goal_status", goal_id="a", status="COMPLETED")
    assert _told_now(run) == {"a": 1, "b": 1}
    stages[f"{key}-b"].go.set()
    wait_settled(run, sent["message_id"])
    assert fate_of(run, sent["message_id"]) == Fate("delivered", run.first_turn, 1)
    asked = asked_by(models, key, "shorter")
    assert sorted(said_in(call)[0] for call in asked) == sorted(lines.values())
    for call in asked:
        assert [each["role"] for each in call.messages[1:]] == ["user", "assistant", "tool", "user"]
        assert call.messages[-1]["content"] == text
    five_checks(run, models, key)


def test_a_steer_to_a_goal_that_has_not_begun_waits_for_it(user: Api, models: ModelServer, key: str) -> None:
    run = start_plan(user, goal("a", tool_line(key, key, "a")), goal("b", say_done(key), "a"))
    stages[key].wait_begun()
    sent = run.say(text := brief(key, "shorter"), mode="steer", goal_id="b")
    stages[key].go.set()
    wait_settled(run, sent["message_id"])
    assert fate_of(run, sent["message_id"]) == Fate("delivered", run.first_turn, 1)
    assert _told(run) == (1, {"b": 0})
    (asked,) = asked_by(models, key, "shorter")
    assert said_in(asked) == [say_done(key), NOT_ANSWERED, text]
    five_checks(run, models, key)


@pytest.mark.parametrize("mode", ["steer", "redirect"])
def test_a_message_to_a_goal_that_is_a_tool_or_has_finished_starts_the_next_turn(
    user: Api, models: ModelServer, key: str, mode: str
) -> None:
    tool = {"id": "tool", "tool": {"name": "until_told", "arguments": {"stage": key}}}
    run = start_plan(user, goal("done", say_done(key)), tool)
    stages[key].wait_begun()
    run.wait_event("goal_status", goal_id="done", status="COMPLETED")
    sent = [run.say(brief(key, f"to the {name}"), mode=mode, goal_id=name) for name in ("tool", "done")]
    assert [each["disposition"] for each in sent] == ["steered", "steered"]
    stages[key].go.set()
    for each in sent:
        wait_settled(run, each["message_id"])
    first, second = (fate_of(run, each["message_id"]) for each in sent)
    assert (first.position, second.position) == (0, 0)
    assert len({run.first_turn, first.turn_id, second.turn_id}) == 3
    five_checks(run, models, key)


@pytest.mark.parametrize("mode", ["steer", "redirect"])
def test_a_message_to_a_goal_that_is_not_there_is_refused_and_leaves_no_trace(
    user: Api, models: ModelServer, key: str, mode: str
) -> None:
    run = _two_at_work(user, key)
    body = {"text": "who?", "mode": mode, "goal_id": "nobody"}
    refused = assert_problem(user.request("POST", f"{run.path}/input", json=body), 404, "not_found")
    assert f"GET {run.path}/plan shows its goals" in refused["detail"]
    assert run.inbox() == []
    assert all(call.asked_to_cancel_at is None for call in models.calls(key=key))
    run.cancel(wait_ms=20_000)
    assert of_type(run, "message_queued", "message_delivered") == []
    five_checks(run, models, key)


def test_a_sub_agent_hears_what_names_its_goal_and_nothing_else(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(delegate_line(key, sub_goal("sub", endless(key, "sub")), interval_ms=0))
    started = run.wait_event("text")
    to_all = run.say(brief(key, "to all"), mode="steer")
    sent = run.say(text := brief(key, "to the sub-agent"), mode="redirect", goal_id=started["goal_id"])
    assert (to_all["disposition"], sent["disposition"]) == ("steered", "redirected")
    wait_settled(run, sent["message_id"])
    (asked,) = asked_by(models, key, "to the sub-agent")
    prompt, partial, correction = said_in(asked)
    assert (prompt, correction) == (endless(key, "sub"), text)
    assert partial.startswith("t1 ")
    (last,) = asked_by(models, key, "to all")
    assert [each["role"] for each in last.messages[1:]] == ["user", "assistant", "tool", "user"]
    assert fate_of(run, sent["message_id"]) == Fate("delivered", run.first_turn, 1)
    assert fate_of(run, to_all["message_id"]) == Fate("delivered", run.first_turn, 2)
    five_checks(run, models, key)


def test_a_plan_is_made_again_for_a_redirect_and_all_its_goals_have_it_in_their_history(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(f"work\n{script('silent', on='plan', key=key)}", planning="auto")
    models.wait_open(1, key=key)
    plan = [{"id": name, "title": name, "prompt": brief(key, name)} for name in ("one", "two")]
    sent = run.say(text := f"no\n{script('plan', plan=plan, key=key)}", mode="redirect")
    assert sent["disposition"] == "redirected"
    wait_settled(run, sent["message_id"])
    assert _told(run) == (1, {})
    assert fate_of(run, sent["message_id"]) == Fate("delivered", run.first_turn, 1)
    for name in ("one", "two"):
        (asked,) = asked_by(models, key, name)
        assert said_in(asked) == [text, NOT_ANSWERED, brief(key, name)]
    assert [each["content"] for each in run.transcript()][1:] == [CUT_SILENT, text, f"{ANSWER}\n\n{ANSWER}"]
    five_checks(run, models, key)


def test_a_steer_waits_for_the_plan_also_when_that_is_made_again(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(f"work\n{script('silent', on='plan', key=key)}", planning="auto")
    models.wait_open(1, key=key)
    steered = run.say(shorter := brief(key, "shorter"), mode="steer")
    plan = [{"id": "one", "title": "one", "prompt": brief(key, "one")}]
    redirected = run.say(text := f"no\n{script('plan', plan=plan, key=key)}", mode="redirect")
    wait_settled(run, steered["message_id"])
    _, again, asked = models.calls(key=key)
    assert "shorter" not in str(again.messages)
    assert said_in(asked) == [brief(key, "one"), CUT_SILENT, text, NOT_ANSWERED, shorter]
    assert fate_of(run, redirected["message_id"]) == Fate("delivered", run.first_turn, 1)
    assert fate_of(run, steered["message_id"]) == Fate("delivered", run.first_turn, 2)
    five_checks(run, models, key)


def test_redirects_that_come_before_the_model_is_asked_again_go_in_together(
    user: Api, talking: LocalServer, models: ModelServer, key: str
) -> None:
    run = user.start(endless(key))
    run.wait_event("text", text="t2 ")
    texts = [brief(key, word) for word in ("first", "second", "third")]
    with gate("agent.before_request") as asking:
        sent = [run.say(texts[0], mode="redirect")]
        asking.wait_reached()
        sent += [run.say(text, mode="redirect") for text in texts[1:]]
    assert [each["disposition"] for each in sent] == ["redirected", "steered", "steered"]
    wait_settled(run, sent[0]["message_id"])
    assert [fate_of(run, each["message_id"]).position for each in sent] == [1, 2, 3]
    _, again = models.calls(key=key)
    assert again.messages[-1]["content"] == "\n\n".join(texts)
    five_checks(run, models, key)
