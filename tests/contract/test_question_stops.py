"""Stops while a question is open: the wait ends, the question is withdrawn, and a late answer is told so."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import go_back, of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_call, cancel_goal, outcomes, statuses
from tests.support.plans import goal, say_done, start_plan
from tests.support.questions import (
    answer,
    ask_goal,
    ask_line,
    decline,
    interrupts,
    results,
    wait_question,
    wait_questions,
)
from tests.support.servers import ServerProcess

WAIT: dict[str, Any] = {"wait_ms": 30_000}
BY_USER = ("CANCELLED", "user")


@pytest.fixture(scope="module")
def asking(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose agents may ask."""
    folder = tmp_path_factory.mktemp("asking")
    with ServerProcess(folder, models.url, TOOLS_ALLOWED="ask_user,delegate") as process:
        yield process


@pytest.fixture
def user(asking: ServerProcess, key: str) -> Api:
    """A user of that server who has nothing yet."""
    return asking.api(key)


def _check_withdrawn(run: Run, question: str, cause: str) -> None:
    """The question has a final state that a page can show, and neither answer is taken any more."""
    shown = next(each for each in interrupts(run) if each["interrupt_id"] == question)
    assert (shown["status"], shown["cause"], shown["answer"]) == ("cancelled", cause, None)
    for problem in (answer(run, question, "late", 409), decline(run, question, 409)):
        assert (problem["code"], problem["settled"], problem["cause"]) == ("question_is_settled", "cancelled", cause)
        assert "stopped" in problem["detail"]
    resolved = [event for event in of_type(run, "interruption_resolved") if event["interrupt_id"] == question]
    assert [(event["disposition"], event["cause"]) for event in resolved] == [("cancelled", cause)]
    assert interrupts(run, "pending") == []


def test_a_stop_while_a_question_is_open_ends_the_wait_at_once_and_the_next_message_works(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(ask_line(key, "Which?"))
    question = wait_question(run)
    stopped = run.cancel(**WAIT)
    assert (stopped["stopped"], stopped["parked"]) == (True, True)
    assert outcomes(stopped["receipt"]) == [("question", "cancelled"), ("goal", "cancelled")]
    assert all(item["took_ms"] < 1000 for item in stopped["receipt"])
    assert results(run) == ["cancelled by operator"]
    _check_withdrawn(run, question, "user")
    five_checks(run, models, key)
    _check_withdrawn(run, question, "user")


def test_an_answer_to_a_question_of_a_stopped_turn_leaves_a_newer_one_alone(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(ask_line(key, "Old?"))
    old = wait_question(run)
    run.cancel(**WAIT)
    run.say(ask_line(key, "New?"))
    new = wait_question(run, after=_seq_of_parking(run))
    assert new != old
    assert answer(run, old, "for the old one", 409)["settled"] == "cancelled"
    assert [each["status"] for each in interrupts(run)] == ["pending", "cancelled"]
    assert run.state == "awaiting_answer"
    answer(run, new, "for the new one")
    run.wait_parked()
    assert results(run)[-1] == "for the new one"
    five_checks(run, models, key)


def _seq_of_parking(run: Run) -> int:
    return int(run.events(lambda event: event["type"] == "awaiting_input")[-1]["seq"])


def test_a_resumed_turn_asks_anew(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"))
    old = wait_question(run)
    run.cancel(**WAIT)
    go_back(run, "resume")
    new = wait_question(run, after=_seq_of_parking(run))
    assert answer(run, old, "x", 409)["settled"] == "cancelled"
    answer(run, new, "this")
    assert run.wait_parked() == "awaiting_input"
    assert results(run) == ["this"]
    five_checks(run, models, key)


def test_a_terminate_while_a_question_is_open_ends_the_run(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"))
    question = wait_question(run)
    assert outcomes(run.terminate(**WAIT)["receipt"])[0] == ("question", "cancelled")
    assert run.state == "cancelled"
    _check_withdrawn(run, question, "user")
    five_checks(run, models, key)


def test_a_deadline_while_a_question_is_open_ends_the_turn(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"), deadline_ms=2000)
    question = wait_question(run)
    assert run.wait_parked() == "awaiting_input"
    assert results(run) == ["cancelled: deadline"]
    _check_withdrawn(run, question, "deadline")
    five_checks(run, models, key)


def test_the_documented_stop_reaches_a_question(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"))
    question = wait_question(run)
    assert user.post("/stopplan")["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    _check_withdrawn(run, question, "user")
    five_checks(run, models, key)


def test_a_batch_run_goes_on_with_what_it_is_told_while_it_asks(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"), interactive=False)
    question = wait_question(run)
    assert run.cancel(expect=409)["code"] == "not_interactive"
    assert interrupts(run)[0]["status"] == "pending"
    run.cancel(continue_with=say_done(key))
    assert run.wait_parked() == "completed"
    _check_withdrawn(run, question, "user")
    five_checks(run, models, key, is_batch=True)


def test_a_stop_of_one_goal_withdraws_its_questions_and_no_others(user: Api, models: ModelServer, key: str) -> None:
    run = start_plan(
        user, goal("a", ask_line(f"{key}-a", "One?", "Two?")), goal("b", ask_line(f"{key}-b", "B?")),
        goal("c", say_done(f"{key}-c"), "a"),
    )  # fmt: skip
    asked = {event["question"]: event["interrupt_id"] for event in wait_questions(run, 3)}
    stopped = cancel_goal(run, "a", **WAIT)
    assert sorted(outcomes(stopped["receipt"])) == [("goal", "cancelled"), *[("question", "cancelled")] * 2]
    assert run.state == "awaiting_answer"
    assert [each["interrupt_id"] for each in interrupts(run, "pending")] == [asked["B?"]]
    answer(run, asked["B?"], "b")
    run.wait_parked()
    assert statuses(run) == {"a": BY_USER, "b": ("COMPLETED", None), "c": ("CANCELLED", "dependency")}
    for name in ("One?", "Two?"):
        _check_withdrawn(run, asked[name], "user")
    five_checks(run, models, key)


def test_a_stop_of_the_only_goal_that_asks_lets_the_run_go_on_as_running(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_plan(user, goal("a", ask_line(f"{key}-a", "A?")), goal("b", script("silent", key=f"{key}-b")))
    question = wait_question(run)
    models.wait_calls(1, key=f"{key}-b")
    cancel_goal(run, "a", **WAIT)
    assert run.state == "running"
    run.cancel(**WAIT)
    _check_withdrawn(run, question, "user")
    five_checks(run, models, key)


def test_a_stop_of_an_inner_goal_withdraws_the_questions_inside(user: Api, models: ModelServer, key: str) -> None:
    run = start_plan(user, goal("around", goals=[ask_goal("ask", "In?")]), ask_goal("beside", "Out?"))
    asked = {event["goal_id"]: event["interrupt_id"] for event in wait_questions(run, 2)}
    cancel_goal(run, "around", **WAIT)
    assert [each["goal_id"] for each in interrupts(run, "pending")] == ["beside"]
    answer(run, asked["beside"], "x")
    run.wait_parked()
    _check_withdrawn(run, asked["ask"], "user")
    five_checks(run, models, key)


def test_a_stop_of_the_call_alone_withdraws_the_question_and_the_model_is_told(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(ask_line(key, "Which?"))
    asked = wait_questions(run)[0]
    stopped = cancel_call(run, asked["call_id"], **WAIT)
    assert outcomes(stopped["receipt"]) == [("question", "cancelled")]
    assert run.wait_parked() == "awaiting_input"
    assert (results(run), run.transcript()[-1]["content"]) == (["cancelled by operator"], "t1 t2 ")
    _check_withdrawn(run, asked["interrupt_id"], "user")
    five_checks(run, models, key)


def test_a_stop_of_a_delegate_call_withdraws_the_questions_of_its_sub_agents(
    user: Api, models: ModelServer, key: str
) -> None:
    sub = [{"id": "sub", "prompt": ask_line(f"{key}-sub", "Deep?")}]
    run = user.start(script("toolcall", name="delegate", arguments={"goals": sub}, tokens=2, key=key))
    asked = wait_questions(run)[0]
    delegate = run.wait_event("tool_call", name="delegate")["call_id"]
    cancel_call(run, delegate, **WAIT)
    assert run.wait_parked() == "awaiting_input"
    _check_withdrawn(run, asked["interrupt_id"], "user")
    five_checks(run, models, key)


def test_a_message_to_a_run_that_asks_waits_for_the_turns_end(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"))
    question = wait_question(run)
    assert run.say(say_done(key), mode="queue")["disposition"] == "queued"
    assert run.state == "awaiting_answer"
    answer(run, question, "this")
    run.wait_event("awaiting_input")
    assert [event["type"] for event in of_type(run, "turn_completed")] == ["turn_completed"] * 2
    five_checks(run, models, key)
