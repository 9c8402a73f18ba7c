"""An answer against a stop, an expiry and a full disk, each order forced; and many at random instants."""

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from core.errors import StoreError
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer
from tests.support.part_stops import cancel_call, cancel_goal, outcomes
from tests.support.plans import goal, seen_at, start_plan
from tests.support.questions import answer, ask_line, interrupts, results, wait_question, wait_questions
from tests.support.race_kit import Later, break_store, check_nothing_left, turn_of
from tests.support.servers import LocalServer, gate

WAIT: dict[str, Any] = {"wait_ms": 30_000}
#: Rounds of one run; a longer history would only cost time.
BLOCK = 20
ROUNDS = [60, pytest.param(500, marks=pytest.mark.slow)]


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process whose agents may ask; afterwards nothing may be left in it."""
    with _asking(tmp_path, models) as server:
        yield server
        check_nothing_left(server)


def _asking(folder: Path, models: ModelServer) -> LocalServer:
    """A server in this process whose agents may ask."""
    return LocalServer(folder, models.url, tools_allowed=("ask_user",))


def _is_look(decide: Any) -> bool:
    """Whether it is the decision by which a call asks, and looks for the answer."""
    return "look_at_question" in decide.__code__.co_names


# -- one order each ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["turn", "terminate", "goal", "call"])
def test_an_answer_that_was_taken_before_the_stop_is_kept_whatever_stops(
    local: LocalServer, models: ModelServer, key: str, stop: str
) -> None:
    run = local.api().start(ask_line(key, "Which?"))
    asked = wait_questions(run)[0]
    with gate("asking.before_look") as looking:
        assert answer(run, asked["interrupt_id"], "this")["disposition"] == "answered"
        looking.wait_reached()  # woken by the answer, and it has not seen it yet
        _stop(run, asked, stop)
        looking.open()
        run.wait_parked()
    assert results(run) == ["this"]
    if stop == "turn":
        (end,) = of_type(run, "turn_cancelled")
        assert outcomes(end["receipt"]) == [("question", "already_done"), ("goal", "cancelled")]
        assert end["receipt"][0]["how"] == "it was answered"
    assert [event["disposition"] for event in of_type(run, "interruption_resolved")] == ["answered"]
    five_checks(run, models, key)


def test_an_answer_that_comes_just_after_the_stop_is_refused_and_not_in_the_transcript(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(ask_line(key, "Which?"))
    question = wait_question(run)
    with gate("answering.before_decision") as answering, gate("turn.before_finish") as unwinding:
        late = Later(lambda: answer(seen_at(local, run), question, "this", 409))
        answering.wait_reached()
        run.cancel()
        unwinding.wait_reached()
        answering.open()
        assert (late.result()["settled"], late.result()["cause"]) == ("cancelled", "user")
    assert run.wait_parked() == "awaiting_input"
    assert results(run) == ["cancelled by operator"]
    five_checks(run, models, key)


@pytest.mark.parametrize("stop", ["turn", "terminate", "goal", "call"])
def test_a_stop_that_is_recorded_has_withdrawn_the_question_though_its_call_has_not_seen_it(
    local: LocalServer, models: ModelServer, key: str, stop: str
) -> None:
    run = local.api().start(ask_line(key, "Which?"))
    asked = wait_questions(run)[0]
    with gate("asking.before_look") as looking:
        _stop(run, asked, stop)
        looking.wait_reached()
        assert answer(run, asked["interrupt_id"], "this", 409)["settled"] == "cancelled"
        assert interrupts(run)[0]["status"] == "cancelled"
        looking.open()
        run.wait_parked()
    recorded, resolved = of_type(run, "stop_requested", "interruption_resolved")
    assert (recorded["seq"] + 1, resolved["disposition"]) == (resolved["seq"], "cancelled")
    assert results(run) == ["cancelled by operator"]
    five_checks(run, models, key)


def _stop(run: Run, asked: dict[str, Any], what: str) -> None:
    if what in ("turn", "terminate"):
        run.api.post(f"{run.path}/{'cancel' if what == 'turn' else what}")
    elif what == "goal":
        cancel_goal(run, asked["goal_id"])
    else:
        cancel_call(run, asked["call_id"])


def test_a_stop_that_comes_before_the_question_is_asked_leaves_none(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("asking.before_look") as looking:
        run = local.api().start(ask_line(key, "Which?"))
        looking.wait_reached()
        run.cancel()
        looking.open()
        assert run.wait_parked() == "awaiting_input"
    assert (interrupts(run), results(run)) == ([], ["cancelled by operator"])
    five_checks(run, models, key)


@pytest.mark.parametrize("part", ["goal", "call"])
def test_a_question_that_is_asked_behind_the_stop_of_its_part_is_withdrawn(
    local: LocalServer, models: ModelServer, key: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = local.main.writer.transact
    looks: list[Any] = []

    def stop_first(decide: Any) -> Any:
        if _is_look(decide):
            looks.append(decide)
            if len(looks) == 1:  # the stop is recorded now, and then the question, by a thread that has not seen the stop
                _stop_part(seen_at(local, run), part)
        return transact(decide)

    with gate("tool_batch.before_tools") as before:
        run = start_plan(local.api(), goal("a", ask_line(key, "Which?")))
        before.wait_reached()
        monkeypatch.setattr(local.main.writer, "transact", stop_first)
        before.open()
        assert run.wait_parked() == "awaiting_input"
    assert [each["status"] for each in interrupts(run)] == ["cancelled"]
    assert results(run) == ["cancelled by operator"]
    five_checks(run, models, key)


def _stop_part(run: Run, part: str) -> None:
    if part == "goal":
        cancel_goal(run, "a")
    else:
        cancel_call(run, run.wait_event("tool_call")["call_id"])


def test_an_answer_that_was_taken_in_time_is_kept_though_the_time_is_over_when_it_is_looked_at(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(ask_line(key, {"question": "Now?", "timeout_ms": 400}))
    question = wait_question(run)
    with gate("asking.before_look") as looking:
        answer(run, question, "this")
        looking.wait_reached()
        time.sleep(0.5)  # until its time is over
        looking.open()
        run.wait_parked()
    assert results(run) == ["this"]
    five_checks(run, models, key)


def test_an_answer_that_comes_when_the_time_is_over_is_refused_though_nobody_has_noted_that(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(ask_line(key, {"question": "Now?", "timeout_ms": 100}))
    question = wait_question(run)
    with gate("asking.before_look") as looking:
        looking.wait_reached()
        assert answer(run, question, "late", 410)["code"] == "question_is_expired"
        looking.open()
        run.wait_parked()
    assert "expired" in results(run)[0]
    five_checks(run, models, key)


def test_an_answer_is_found_once_the_store_answers_again(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = local.api().start(ask_line(key, "Which?"))
    question = wait_question(run)
    is_broken = [False]
    with gate("asking.before_look") as looking:
        answer(run, question, "this")
        looking.wait_reached()
        break_store(monkeypatch, local.main.writer, lambda: is_broken[0])
        is_broken[0] = True
        looking.open()
    with gate("asking.before_look") as again:
        again.wait_reached()
        is_broken[0] = False
        again.open()
        assert run.wait_parked() == "awaiting_input"
    assert results(run) == ["this"]
    five_checks(run, models, key)


def test_a_question_that_cannot_be_recorded_is_an_error_for_the_model(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = local.main.writer.transact

    def refuse(_: Any) -> Any:
        raise StoreError

    monkeypatch.setattr(
        local.main.writer, "transact",
        lambda decide: transact(refuse if _is_look(decide) else decide),
    )  # fmt: skip
    run = local.api().start(ask_line(key, "Which?"))
    assert run.wait_parked() == "awaiting_input"
    (result,) = of_type(run, "tool_result")
    assert (result["is_error"], "recorded" in result["content"], interrupts(run)) == (True, True, [])
    five_checks(run, models, key)


def test_a_question_that_was_decided_and_could_not_be_committed_was_never_asked(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = local.main.writer._committer
    insert = committer._insert

    def refuse(connection: Any, rows: Any, encoded: Any) -> None:
        if any(row.type == "interruption_pending" for row in rows):
            raise OperationalError("insert", {}, Exception("disk is full"))
        insert(connection, rows, encoded)

    monkeypatch.setattr(committer, "_insert", refuse)
    with gate("tool_batch.before_tools") as before:
        run = local.api().start(ask_line(key, "Which?"))
        before.wait_reached()
        turn = turn_of(local, run)
        before.open()
        assert run.wait_parked() == "awaiting_input"
    (result,) = of_type(run, "tool_result")
    assert (result["is_error"], "recorded" in result["content"], interrupts(run)) == (True, True, [])
    assert not turn.questions.has_asked(result["call_id"])
    five_checks(run, models, key)


def test_a_stop_while_the_store_is_broken_ends_the_wait_all_the_same(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = local.api().start(ask_line(key, "Which?"))
    question = wait_question(run)
    is_broken = [True]
    break_store(monkeypatch, local.main.writer, lambda: is_broken[0])
    with gate("turn.before_finish") as unwound:
        assert run.cancel(expect=500)["code"] == "stop_not_recorded"
        unwound.wait_reached()
        is_broken[0] = False
    assert run.wait_parked() == "awaiting_input"
    assert answer(run, question, "late", 409)["settled"] == "cancelled"
    assert results(run) == ["cancelled by operator"]
    five_checks(run, models, key)


# -- at random instants ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_an_answer_and_a_stop_at_once_each_is_told_the_truth(
    local: LocalServer, models: ModelServer, key: str, rounds: int
) -> None:
    rng = random.Random(20_260)
    taken = 0
    for number in range(rounds):
        if number % BLOCK == 0:
            run = local.api().start(ask_line(key, "0?"))
            other, seen = seen_at(local, run), 0
        question = wait_question(run, after=seen)
        barrier, offset, text = threading.Barrier(2), rng.uniform(-0.002, 0.002), f"answer {number}"
        answering = Later(partial(_send, other, question, text, barrier, offset))
        barrier.wait(30)
        time.sleep(max(0.0, -offset))
        stopped = run.cancel(**WAIT)
        status = answering.result()
        events = run.events(after=seen)
        seen = events[-1]["seq"]
        _check_round(events, text, status, stopped["stopped"])
        taken += status == 200
        if (number + 1) % BLOCK == 0:
            five_checks(run, models, key)
        else:
            run.say(ask_line(key, f"{number + 1}?"))
    assert rounds < 100 or 0 < taken < rounds, taken


def _send(run: Run, question: str, text: str, barrier: threading.Barrier, after_s: float) -> int:
    barrier.wait(30)
    time.sleep(max(0.0, after_s))  # the random instant is what is tried here
    body = {"disposition": "answered", "answer": text}
    return run.api.request("POST", f"{run.path}/interrupts/{question}/resolve", json=body).status_code


def _check_round(events: list[dict[str, Any]], text: str, status: int, was_stopped: bool) -> None:
    (result,) = [event["content"] for event in events if event["type"] == "tool_result"]
    (resolved,) = [event["disposition"] for event in events if event["type"] == "interruption_resolved"]
    (end,) = [event for event in events if event["type"] in ("turn_completed", "turn_cancelled", "turn_failed")]
    assert was_stopped == (end["type"] == "turn_cancelled")
    assert status in (200, 409)
    assert (result, resolved) == ((text, "answered") if status == 200 else ("cancelled by operator", "cancelled"))
    said = [message["content"] for message in end["messages"] if message["role"] == "tool"]
    assert said == [result]
    if status == 409:
        assert was_stopped


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_an_answer_and_the_end_of_its_time_at_once_one_is_true(
    local: LocalServer, models: ModelServer, key: str, rounds: int
) -> None:
    rng = random.Random(20_261)
    timeout_s = 0.06
    line = ask_line(key, {"question": "Now?", "timeout_ms": int(timeout_s * 1000)})
    statuses = []
    for number in range(rounds):
        if number % BLOCK == 0:
            run = local.api().start(line)
            other, seen = seen_at(local, run), 0
        asked = wait_questions(run, after=seen)[0]
        due = time.monotonic() + timeout_s - 0.003 + rng.uniform(-0.012, 0.006)
        path, text = f"{other.path}/interrupts/{asked['interrupt_id']}/resolve", f"answer {number}"
        time.sleep(max(0.0, due - time.monotonic()))  # the random instant is what is tried here
        status = other.api.request("POST", path, json={"disposition": "answered", "answer": text}).status_code
        events = run.events(after=seen)
        seen = events[-1]["seq"]
        (result,) = [event["content"] for event in events if event["type"] == "tool_result"]
        (resolved,) = [event["disposition"] for event in events if event["type"] == "interruption_resolved"]
        assert status in (200, 410)
        assert (result == text, resolved) == ((True, "answered") if status == 200 else (False, "expired"))
        statuses.append(status)
        if (number + 1) % BLOCK == 0:
            five_checks(run, models, key)
        else:
            run.say(line)
    assert rounds < 100 or len(set(statuses)) == 2, statuses
