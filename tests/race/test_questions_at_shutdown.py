"""A turn that waits for an answer when its server is asked to end: left to the next one, whatever comes at that moment."""

from pathlib import Path

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer, script
from tests.support.plans import seen_at
from tests.support.questions import (
    answer,
    ask_line,
    calls_line,
    decline,
    interrupts,
    results,
    wait_question,
    wait_questions,
)
from tests.support.race_kit import Later
from tests.support.servers import LocalServer, gate, wait_until


def _asking(folder: Path, models: ModelServer, *tools: str) -> LocalServer:
    """A server in this process whose agents may ask."""
    return LocalServer(folder, models.url, tools_allowed=("ask_user", *tools))


def test_an_answer_at_the_moment_of_a_shutdown_is_taken_up_by_the_next_server(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with _asking(tmp_path, models) as server:
        run = server.api().start(ask_line(key, "Which?"))
        question = wait_question(run)
        with gate("asking.before_look") as looking:
            answer(run, question, "this")
            looking.wait_reached()
            server.main.engine.shut_down()
            looking.open()
            assert server.main.engine.wait_parked(30)
        assert (run.state, interrupts(run)[0]["status"]) == ("running", "answered")
    _check_taken_up(models, key, tmp_path, run, "this")


def test_an_answer_after_the_turns_were_left_is_taken_up_by_the_next_server(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with _asking(tmp_path, models) as server:
        run = server.api().start(ask_line(key, "Which?"))
        question = wait_question(run)
        server.main.engine.shut_down()
        assert server.main.engine.wait_parked(30)
        assert run.state == "awaiting_answer"
        decline(run, question, comment="no time")
        assert run.state == "running"
    _check_taken_up(models, key, tmp_path, run, "the user chose to skip this question\n\nThe user's comment: no time")


def _check_taken_up(models: ModelServer, key: str, folder: Path, run: Run, result: str) -> None:
    with _asking(folder, models) as server:
        run = seen_at(server, run)
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == [result]
        assert run.view()["turn_id"] == run.first_turn
        five_checks(run, models, key)


def test_a_stop_after_the_turns_were_left_is_found_by_the_next_server(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with _asking(tmp_path, models) as server:
        run = server.api().start(ask_line(key, "Which?"))
        question = wait_question(run)
        with gate("engine.before_stop") as stopping:
            stop = Later(lambda: seen_at(server, run).cancel(reason="enough"))
            stopping.wait_reached()  # it has found the turn, which is left just now
            server.main.engine.shut_down()
            stopping.open()
            assert (stop.result()["stopped"], stop.result()["state"]) == (True, "stopping")
        assert answer(run, question, "late", 409)["cause"] == "user"
    with _asking(tmp_path, models) as server:
        run = seen_at(server, run)
        assert run.state == "awaiting_input"
        (end,) = of_type(run, "turn_cancelled")
        assert (end["cause"], end["reason"]) == ("user", "enough")
        five_checks(run, models, key)


def test_a_turn_that_was_left_asks_no_model_and_calls_no_tool_although_its_answer_is_there(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    calls = ("ask_user", {"question": "Which?"}), ("shell", {"command": f"echo x >> {marks}"})
    with _asking(tmp_path, models, "shell") as server:
        run = server.api().start(calls_line(key, *calls, rounds=2))
        other = server.api("bob").start(script("trickle", tokens=2000, interval_ms=20, key=f"other-{key}"))
        other.wait_event("text")
        question = wait_question(run)
        run.wait_event("tool_result")  # the shell's
        with gate("tool_batch.before_result") as answered, gate("turn.requests_cancelled") as slow:
            answer(run, question, "this")
            answered.wait_reached()  # its thread has the answer, and has not noted it
            down = Later(server.main.engine.shut_down)
            slow.wait_reached()  # it is left by now; the stop of the other turn takes its time
            answered.open()
            wait_until(lambda: not server.main.engine._left, "its threads end, although the others' stops have not")
            slow.open()
        down.result()
        assert server.main.engine.wait_parked(30)
        assert (run.state, len(models.calls(key=key)), marks.read_text()) == ("running", 1, "x\n")
    with _asking(tmp_path, models, "shell") as server:
        run = seen_at(server, run)
        answer(run, wait_questions(run, 2)[1]["interrupt_id"], "that")
        assert run.wait_parked() == "awaiting_input"
        assert (marks.read_text(), len(models.calls(key=key))) == ("x\n" * 2, 3)
        assert run.view()["usage"]["calls"] == 3
        five_checks(run, models, key)
