"""Questions to the user: asked, answered, declined, expired; what is refused, and what is seen meanwhile."""

import time
from collections.abc import Iterator

import pytest

from tests.support.api_client import Api, in_threads
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type, system_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan
from tests.support.questions import (
    answer,
    ask_goal,
    ask_line,
    decline,
    interrupts,
    resolve,
    results,
    wait_question,
    wait_questions,
)
from tests.support.servers import ServerProcess

SKIPPED = "the user chose to skip"


@pytest.fixture(scope="module")
def asking(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose agents may ask; one place for calls is enough for that."""
    folder = tmp_path_factory.mktemp("asking")
    with ServerProcess(folder, models.url, TOOLS_ALLOWED="ask_user,delegate", CALL_THREADS="1") as process:
        yield process


@pytest.fixture
def user(asking: ServerProcess, key: str) -> Api:
    """A user of that server who has nothing yet."""
    return asking.api(key)


# -- asked and answered --------------------------------------------------------------------------


def test_an_answer_is_the_result_of_the_call_and_the_model_goes_on(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, {"question": "Which colour?", "options": ["red", "blue"]}))
    (asked,) = wait_questions(run)
    assert run.state == "awaiting_answer"
    assert (asked["question"], asked["options"], asked["expires_at"]) == ("Which colour?", ["red", "blue"], None)
    (shown,) = interrupts(run, "pending")
    assert (shown["interrupt_id"], shown["call_id"]) == (asked["interrupt_id"], asked["call_id"])
    said = answer(run, asked["interrupt_id"], "blue", comment="the light one")
    assert (said["interrupt_id"], said["run_id"], said["disposition"]) == (asked["interrupt_id"], run.id, "answered")
    assert run.wait_parked() == "awaiting_input"
    assert results(run) == ["blue\n\nThe user's comment: the light one"]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    (resolved,) = of_type(run, "interruption_resolved")
    assert {name: resolved[name] for name in ("interrupt_id", "disposition", "answer", "comment", "goal_id", "call_id")} == {
        "interrupt_id": asked["interrupt_id"], "disposition": "answered", "answer": "blue", "comment": "the light one",
        "goal_id": "answer", "call_id": asked["call_id"],
    }  # fmt: skip
    (settled,) = interrupts(run)
    assert (settled["status"], settled["answer"], settled["settled_at"]) == ("answered", "blue", said["settled_at"])
    assert interrupts(run, "pending") == []
    five_checks(run, models, key)


def test_a_question_without_options_takes_any_text(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Why?"))
    answer(run, wait_question(run), "because … 🙂")
    run.wait_parked()
    assert results(run) == ["because … 🙂"]
    five_checks(run, models, key)


def test_a_question_that_is_declined_is_no_error_and_needs_no_option(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, {"question": "Which?", "options": ["a", "b"]}))
    assert decline(run, wait_question(run), comment="neither")["disposition"] == "declined"
    run.wait_parked()
    (result,) = of_type(run, "tool_result")
    assert result["content"].startswith(SKIPPED)
    assert (result["is_error"], "neither" in result["content"]) == (False, True)
    (resolved,) = of_type(run, "interruption_resolved")
    assert (resolved["disposition"], "answer" in resolved) == ("declined", False)
    five_checks(run, models, key)


def test_a_question_that_nobody_answers_in_its_time_expires_and_the_model_goes_on(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(ask_line(key, {"question": "Now?", "timeout_ms": 300}))
    asked = wait_questions(run)[0]
    assert asked["expires_at"] > asked["at"]
    assert run.wait_parked() == "awaiting_input"
    (result,) = of_type(run, "tool_result")
    assert (result["is_error"], "expired" in result["content"]) == (True, True)
    assert [event["disposition"] for event in of_type(run, "interruption_resolved")] == ["expired"]
    assert answer(run, asked["interrupt_id"], "late", 410)["code"] == "question_is_expired"
    assert decline(run, asked["interrupt_id"], 410)["code"] == "question_is_expired"
    assert interrupts(run)[0]["status"] == "expired"
    five_checks(run, models, key)


def test_an_answer_in_time_calls_the_expiry_off(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, {"question": "Now?", "timeout_ms": 60_000}))
    answer(run, wait_question(run), "yes")
    run.wait_parked()
    assert results(run) == ["yes"]
    five_checks(run, models, key)


def test_two_questions_of_one_reply_are_each_answered_and_their_results_keep_their_order(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(ask_line(key, "First?", "Second?"))
    asked = {event["question"]: event["interrupt_id"] for event in wait_questions(run, 2)}
    assert [each["interrupt_id"] for each in interrupts(run)] == sorted(asked.values(), reverse=True)
    answer(run, asked["Second?"], "two")
    run.wait_event("tool_result")
    assert run.state == "awaiting_answer"
    answer(run, asked["First?"], "one")
    run.wait_parked()
    assert results(run) == ["one", "two"]
    five_checks(run, models, key)


def test_goals_that_need_no_answer_go_on_beside_a_question(user: Api, models: ModelServer, key: str) -> None:
    run = start_plan(
        user, goal("asks", ask_line(f"{key}-asks", "A?")), goal("works", say_done(f"{key}-works")),
        goal("waits", script("strict", key=f"{key}-waits"), "asks"),
    )  # fmt: skip
    question = wait_question(run)
    run.wait_event("goal_status", goal_id="works", status="COMPLETED")
    assert (run.state, models.calls(key=f"{key}-waits")) == ("awaiting_answer", [])
    answer(run, question, "yes")
    run.wait_parked()
    assert {each["status"] for each in run.goals().values()} == {"COMPLETED"}
    five_checks(run, models, key)


def test_questions_of_two_goals_are_told_apart(user: Api, models: ModelServer, key: str) -> None:
    run = start_plan(user, goal("a", ask_line(f"{key}-a", "A?")), goal("b", ask_line(f"{key}-b", "B?")))
    asked = {event["goal_id"]: event["interrupt_id"] for event in wait_questions(run, 2)}
    answer(run, asked["b"], "for b")
    run.wait_event("goal_status", goal_id="b", status="COMPLETED")
    assert (run.state, run.goals()["a"]["status"]) == ("awaiting_answer", "IN_PROGRESS")
    answer(run, asked["a"], "for a")
    run.wait_parked()
    said = {event["goal_id"]: event["content"] for event in of_type(run, "tool_result")}
    assert said == {"a": "for a", "b": "for b"}
    five_checks(run, models, key)


def test_a_goal_may_be_a_question_whose_answer_its_dependents_read(user: Api, models: ModelServer, key: str) -> None:
    run = start_plan(user, ask_goal("ask", "Where to?"), goal("go", script("strict", key=key), "ask"))
    answer(run, wait_question(run), "to Oslo")
    run.wait_parked()
    (request,) = models.calls(key=key)
    assert "Result of “ask”:\nto Oslo" in system_of(request)
    five_checks(run, models, key)


def test_a_goal_that_is_a_question_fails_when_that_expires(user: Api, models: ModelServer, key: str) -> None:
    run = start_plan(user, ask_goal("ask", "Where to?", timeout_ms=50), goal("go", say_done(key), "ask"))
    run.wait_parked()
    assert [each["status"] for each in run.goals().values()] == ["FAILED", "CANCELLED"]
    five_checks(run, models, key)


def test_a_batch_run_asks_as_well_and_ends_with_its_turn(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Go?"), interactive=False)
    answer(run, wait_question(run), "go")
    assert run.wait_parked() == "completed"
    five_checks(run, models, key, is_batch=True)


def test_a_question_inside_a_sub_agent_is_answered_like_any_other(user: Api, models: ModelServer, key: str) -> None:
    sub = [{"id": "sub", "prompt": ask_line(f"{key}-sub", "Deep?")}]
    line = script("toolcall", name="delegate", arguments={"goals": sub}, tokens=2, key=key)
    run = user.start(line)
    (asked,) = wait_questions(run)
    assert run.state == "awaiting_answer"
    answer(run, asked["interrupt_id"], "deep")
    run.wait_parked()
    assert of_type(run, "tool_result")[0]["content"] == "deep"
    five_checks(run, models, key)


def test_ten_questions_of_a_run_wait_and_the_eleventh_is_refused_to_the_model(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(ask_line(key, *[f"{number}?" for number in range(11)]))
    asked = wait_questions(run, 10)
    refused = run.wait_event("tool_result")
    assert (refused["is_error"], "10 questions" in refused["content"]) == (True, True)
    for event in asked:
        answer(run, event["interrupt_id"], event["question"])
    run.wait_parked()
    assert sorted(content for content in results(run) if content.endswith("?")) == sorted(e["question"] for e in asked)
    five_checks(run, models, key)


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"question": ""}, {"question": " \n"}, {"question": 5}, {"question": "x", "options": []},
        {"question": "x", "options": [""]}, {"question": "x", "timeout_ms": 0},
        {"question": "x", "timeout_ms": 7 * 24 * 3600 * 1000 + 1}, {"question": "x", "more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_not_asked(
    user: Api, models: ModelServer, key: str, arguments: dict[str, object]
) -> None:
    run = user.start(ask_line(key, arguments))
    assert run.wait_parked() == "awaiting_input"
    assert (of_type(run, "tool_result")[0]["is_error"], interrupts(run)) == (True, [])
    five_checks(run, models, key)


def test_a_turn_that_waits_for_an_answer_is_not_idle(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"), idle_limit_ms=300)
    question = wait_question(run)
    time.sleep(1)  # more than the limit: nothing is to happen
    assert run.state == "awaiting_answer"
    answer(run, question, "this")
    assert (run.wait_parked(), results(run)) == ("awaiting_input", ["this"])
    five_checks(run, models, key)


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "disposition"), ({"disposition": "cancelled"}, "disposition"), ({"disposition": "answered"}, "answer"),
        ({"disposition": "answered", "answer": ""}, "answer"), ({"disposition": "answered", "answer": " "}, "answer"),
        ({"disposition": "answered", "answer": "green"}, "answer"), ({"disposition": "answered", "answer": 1}, "answer"),
        ({"disposition": "declined", "answer": "red"}, "answer"),
        ({"disposition": "answered", "answer": "red", "more": 1}, "more"),
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_of_a_wrong_shape_is_refused_and_the_question_stays_open(
    user: Api, models: ModelServer, key: str, body: dict[str, object], field: str
) -> None:
    run = user.start(ask_line(key, {"question": "Which?", "options": ["red", "blue"]}))
    question = wait_question(run)
    problem = resolve(run, question, 422, **body)
    assert (problem["code"], [each["field"] for each in problem["errors"]]) == ("invalid_request", [field])
    assert (run.state, interrupts(run)[0]["status"]) == ("awaiting_answer", "pending")
    answer(run, question, "red")
    run.wait_parked()
    five_checks(run, models, key)


def test_a_question_that_there_is_not_or_of_another_run_or_user_is_not_found(
    asking: ServerProcess, user: Api, models: ModelServer, key: str
) -> None:
    run, other = (user.start(ask_line(f"{key}-{name}", f"{name}?")) for name in ("a", "b"))
    questions = [wait_question(each) for each in (run, other)]
    stranger = asking.api(f"{key}-stranger")
    assert answer(run, "q_01JQ0000000000000000000000", "x", 404)["code"] == "not_found"
    assert answer(run, questions[1], "x", 404)["code"] == "not_found"
    assert resolve(run, questions[0], 404, stranger, disposition="declined")["code"] == "not_found"
    assert stranger.request("GET", f"{run.path}/interrupts").status_code == 404
    reader = asking.api(key, scope="runs:read")
    assert resolve(run, questions[0], 403, reader, disposition="declined")["code"] == "insufficient_scope"
    assert [each["status"] for each in interrupts(run) + interrupts(other)] == ["pending"] * 2
    for each, question, name in zip((run, other), questions, "ab", strict=True):
        decline(each, question)
        each.wait_parked()
        five_checks(each, models, f"{key}-{name}")


def test_the_first_answer_stands_and_the_same_again_is_told_how_it_was_settled(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(ask_line(key, "Which?"))
    question = wait_question(run)
    answer(run, question, "this")
    for problem in (answer(run, question, "this", 409), answer(run, question, "that", 409), decline(run, question, 409)):
        assert (problem["code"], problem["settled"]) == ("question_is_settled", "answered")
    run.wait_parked()
    assert results(run) == ["this"]
    five_checks(run, models, key)


def test_of_ten_answers_at_once_one_is_taken(asking: ServerProcess, user: Api, models: ModelServer, key: str) -> None:
    run = user.start(ask_line(key, "Which?"))
    path = f"{run.path}/interrupts/{wait_question(run)}/resolve"

    def send(number: int) -> int:
        body = {"disposition": "answered", "answer": f"answer {number}"}
        return asking.api(key).request("POST", path, json=body).status_code

    statuses = in_threads(10, send)
    assert sorted(statuses) == [200] + [409] * 9
    run.wait_parked()
    assert results(run) == [f"answer {statuses.index(200)}"]
    assert len(of_type(run, "interruption_resolved")) == 1
    five_checks(run, models, key)


def test_agents_cannot_ask_until_that_is_allowed(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(ask_line(key, "May I?"))
    run.wait_parked()
    assert (models.calls(key=key)[0].tools, of_type(run, "interruption_pending")) == ([], [])
    five_checks(run, models, key)
