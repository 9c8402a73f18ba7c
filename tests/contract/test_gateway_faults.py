"""A model server that is down, talks nonsense, or breaks off: the turn says so, keeps its text, and the run parks."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.front import Front
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.spread(2)


def _failure(run: Run) -> str:
    """Why the first turn failed, as its user reads it."""
    end = run.wait_event("turn_failed")
    message = str(end["error"])
    assert 10 < len(message) < 500
    for unfit in ("Traceback", "Error(", "<html", "urllib3", "object at 0x", "\n"):
        assert unfit not in message
    assert run.wait_parked() == "awaiting_input"
    return message


def _assert_goes_on(run: Run, models: ModelServer, key: str) -> None:
    """The run works, and its history passes a strict server."""
    five_checks(run, models, key)


@pytest.mark.parametrize(("provider", "planning"), [("de2generator", "none"), ("openai", "auto")])
def test_a_gateway_that_is_down_fails_the_turn_clearly_and_once_it_is_back_the_next_message_works(
    models: ModelServer, tmp_path: Path, key: str, provider: str, planning: str
) -> None:
    with Front(models.url) as front:
        url = front.url + ("/v1" if provider == "openai" else "")
        with ServerProcess(tmp_path, url, LLM_PROVIDER=provider) as server:
            front.close()
            run = server.api().start(script("strict", key=key), planning=planning)
            message = _failure(run)
            assert "cannot be reached: connection refused" in message
            assert front.url in message
            retries = [event["attempt"] for event in run.events() if event["type"] == "retry"]
            assert retries == [1, 2, 3, 4]
            assert run.transcript()[-1] == {
                "role": "assistant", "content": "[failed before any text]", "failed": True, "turn_id": run.first_turn
            }  # fmt: skip
            front.open()
            _assert_goes_on(run, models, key)


def test_a_gateway_that_comes_back_during_a_wait_is_found_by_the_next_attempt(
    models: ModelServer, tmp_path: Path, key: str
) -> None:
    with Front(models.url) as front, ServerProcess(tmp_path, front.url) as server:
        front.close()
        run = server.api().start(script("strict", key=key))
        run.wait_event("retry")
        front.open()
        assert "turn_completed" in [event["type"] for event in run.events()]
        _assert_goes_on(run, models, key)


NONSENSE: dict[str, tuple[str, dict[str, Any], str]] = {
    "a-web-page": ("html", {}, "HTML"),
    "a-web-page-as-error": ("html", {"status": 403}, "HTML"),
    "half-of-json": ("halfjson", {}, "not JSON"),
    "a-line-without-end": ("endless", {"mb": 4}, ""),
    "bytes-that-are-no-text": ("badutf8", {}, "UTF-8"),
    "an-empty-body": ("empty", {}, ""),
    "an-answer-without-text": ("nothing", {}, "nothing"),
    "no-permission": ("error", {"status": 401}, "401"),
    "no-such-model": ("error", {"status": 404}, "404"),
    "refused": ("error", {"status": 400}, "400"),
    "a-tool-that-was-not-offered": ("toolcall", {}, "tool"),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_fails_the_turn_clearly_and_is_not_asked_for_again(
    any_server: ServerProcess, models: ModelServer, key: str, kind: str
) -> None:
    name, options, words = NONSENSE[kind]
    run = any_server.api().start(script(name, **options, key=key))
    assert words in _failure(run)
    assert len(models.calls(key=key)) == 1
    assert run.goals()["answer"]["status"] == "FAILED"
    _assert_goes_on(run, models, key)


@pytest.mark.parametrize("how", ["close", "reset", "end"])
def test_a_stream_that_breaks_off_keeps_its_text_and_is_not_begun_again(
    any_server: ServerProcess, models: ModelServer, key: str, how: str
) -> None:
    run = any_server.api().start(script("drop", tokens=5, interval_ms=5, how=how, key=key))
    _failure(run)
    assert len(models.calls(key=key)) == 1
    said = run.transcript()[-1]
    assert (said["content"], said["failed"]) == ("t1 t2 t3 t4 t5 ", True)
    _assert_goes_on(run, models, key)


def test_failures_that_may_pass_are_tried_again_and_then_told(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    lines = {
        "500": ("busy", {"status": 500, "retry_after_s": 0}),
        "503": ("busy", {"status": 503, "retry_after_s": 0}),
        "429": ("busy", {"retry_after_s": 0}),
        "502": ("drop", {"status": 502}),
        "broke off": ("drop", {"tokens": 0}),
    }
    api = any_server.api()
    runs = {word: api.start(script(line[0], **line[1], key=f"{key}-{word[:3]}")) for word, line in lines.items()}
    for word, run in runs.items():
        assert word in _failure(run)
        assert len(models.calls(key=f"{key}-{word[:3]}")) == 5
        _assert_goes_on(run, models, f"{key}-{word[:3]}")


def test_a_refusal_that_passes_is_not_seen_in_the_answer(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("busy", times=2, retry_after_s=0, tokens=2, interval_ms=0, key=key))
    events = run.events()
    assert [event["attempt"] for event in events if event["type"] == "retry"] == [1, 2]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    _assert_goes_on(run, models, key)


def test_a_goal_that_fails_does_not_fail_the_turn_while_another_completes(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(any_server.api(), goal("bad", script("html", key=key)), goal("good", say_done(key)))
    assert "turn_completed" in [event["type"] for event in run.events()]
    goals = run.goals()
    assert (goals["bad"]["status"], goals["good"]["status"]) == ("FAILED", "COMPLETED")
    assert "HTML" in goals["bad"]["error"]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    _assert_goes_on(run, models, key)
