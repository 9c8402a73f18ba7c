"""Python functions as tools, over HTTP: what the model is told, and what a stop makes of them."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import CauseWord
from core.tool.python_function import FunctionTool
from core.tool.tool import MAX_ABANDONED
from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer
from tests.support.own_tools import LATE, Stage, stages
from tests.support.plans import all_events
from tests.support.python_tools import call_line
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer, ServerProcess, wait_until

NAMES = ("asked", "until_told", "by_scope", "deaf", "deaf_and_slow", "asked_and_slow", "book", "broken")
FIELDS: dict[str, Any] = {"tools_allowed": NAMES, "tool_modules": ("tests.support.own_tools",)}


@pytest.fixture(autouse=True)
def _free_stages() -> Iterator[None]:
    """Whatever a test has left at work may end."""
    yield
    for stage in stages.values():
        stage.go.set()
    stages.clear()


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process; afterwards nothing may be left in it."""
    with LocalServer(tmp_path, models.url, **FIELDS) as server:
        yield server
        for stage in stages.values():
            stage.go.set()
        check_nothing_left(server)


def _line(key: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """A line by which the model makes these calls at the same time, and then says ``t1 t2``."""
    arguments = [json.dumps(given, separators=(",", ":")) for _, given in calls]
    return call_line(key, *(name for name, _ in calls), arguments=arguments)


def _start(server: LocalServer, key: str, name: str) -> tuple[Run, Stage]:
    """A run whose model has called that tool; the function is at work."""
    run = server.api().start(_line(key, (name, {"stage": key})))
    stages[key].wait_begun()
    return run, stages[key]


def _results(run: Run) -> list[str]:
    return [message["content"] for message in run.transcript() if message["role"] == "tool"]


def _receipt(run: Run) -> list[tuple[str, str]]:
    entries = run.api.get(f"{run.path}/receipts")["receipts"]
    return [(item["kind"], item["outcome"]) for item in entries[-1]["receipt"]]


def _readyz(api: Api) -> int:
    return api.request("GET", "/readyz").status_code


# -- calls ----------------------------------------------------------------------------------


def test_a_function_is_called_with_typed_values_and_the_model_reads_json(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    given = {"day": "2026-01-02", "seats": [{"row": 3}, {"row": 4, "letter": "B"}]}
    run = local.api().start(_line(key, ("book", given)))
    assert run.wait_parked() == "awaiting_input"
    assert [json.loads(result) for result in _results(run)] == [
        {"day": "2026-01-02", "seats": [{"row": 3, "letter": "A"}, {"row": 4, "letter": "B"}], "rows": 7, "note": None}
    ]
    assert of_type(run, "tool_result")[0]["is_error"] is False
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert sorted(models.calls(key=key)[0].tools) == sorted(NAMES)
    five_checks(run, models, key)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("book", {"seats": [{"row": 1}]}, "the arguments do not fit the tool: 'day' is a required property"),
        (
            "book",
            {"day": "2026-01-02", "seats": []},
            "the arguments do not fit the tool: seats: [] should be non-empty",
        ),
        ("book", {"day": "someday", "seats": [{"row": 1}]}, "the arguments do not fit the tool: day: Input should be"),
        ("asked", {"stage": "x", "scope": "y"}, "the arguments do not fit the tool: Additional properties"),
        ("broken", {"how": "told"}, "there is no paper left"),
        ("broken", {"how": "untold"}, "the tool failed: internal error (ValueError)"),
    ],
    ids=["missing", "too-few", "no-date", "injected", "told", "untold"],
)
def test_what_goes_wrong_with_a_call_is_told_to_the_model_and_the_loop_goes_on(
    local: LocalServer, models: ModelServer, key: str, name: str, arguments: dict[str, Any], words: str
) -> None:
    run = local.api().start(_line(key, (name, arguments)))
    assert run.wait_parked() == "awaiting_input"
    (result,) = _results(run)
    assert result.startswith(words)
    assert of_type(run, "tool_result")[0]["is_error"] is True
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert "secret" not in str(all_events(run))
    five_checks(run, models, key)


def test_a_server_finds_the_module_in_the_folder_that_it_was_started_in(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    (tmp_path / "my_tools.py").write_text(
        "from core.tool.python_function import tool\n\n\n"
        '@tool\ndef greet(name: str = "you") -> str:\n    """Greet somebody."""\n    return f"Good day, {name}"\n'
    )
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="greet", TOOL_MODULES="my_tools") as server:
        run = server.api().start(_line(key, ("greet", {"name": "Ada"}), ("greet", {})))
        assert run.wait_parked() == "awaiting_input"
        assert _results(run) == ["Good day, Ada", "Good day, you"]
        five_checks(run, models, key)


# -- functions that listen ---------------------------------------------------------------------


def test_a_function_that_is_asked_ends_at_once_and_what_it_returns_is_kept(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run, at = _start(local, key, "asked")
    asked_at = time.monotonic()
    answer = run.cancel(wait_ms=30_000)
    assert time.monotonic() - asked_at < 1.5  # nobody waited until it would be left behind
    assert (answer["stopped"], answer["parked"]) == (True, True)
    assert at.cause is not None
    assert at.cause.word == CauseWord.USER
    assert _receipt(run) == [("tool", "cancelled"), ("goal", "cancelled")]
    assert _results(run) == ["cancelled by operator\nhalf of it"]
    assert [event["text"] for event in of_type(run, "tool_output")] == ["begun\n"]
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


def test_a_function_that_waits_on_its_scope_is_woken(local: LocalServer, models: ModelServer, key: str) -> None:
    run, at = _start(local, key, "by_scope")
    asked_at = time.monotonic()
    assert run.cancel(wait_ms=30_000, reason="enough")["parked"] is True
    assert time.monotonic() - asked_at < 1.5
    assert at.cause is not None
    assert (at.cause.word, at.cause.reason) == (CauseWord.USER, "enough")
    assert _receipt(run) == [("tool", "cancelled"), ("goal", "cancelled")]
    assert _results(run) == ["cancelled by operator"]
    five_checks(run, models, key)


def test_a_terminate_sets_the_event_too(local: LocalServer, models: ModelServer, key: str) -> None:
    run, at = _start(local, key, "asked")
    run.terminate(reason="over")
    at.wait_ended()
    assert at.cause is not None
    assert (at.cause.word, at.cause.reason) == (CauseWord.USER, "over")
    assert run.wait_parked() == "cancelled"
    five_checks(run, models, key)


def test_a_shutdown_sets_the_event_too(models: ModelServer, key: str, tmp_path: Path) -> None:
    with LocalServer(tmp_path, models.url, **FIELDS) as server:
        run, at = _start(server, key, "asked")
    at.wait_ended()
    assert at.event is not None
    assert at.event.is_set()
    assert at.cause is not None
    assert at.cause.word == CauseWord.SHUTDOWN
    with LocalServer(tmp_path, models.url, **FIELDS) as server:
        run.api = server.api()
        assert run.wait_parked() == "awaiting_input"
        assert _results(run) == ["cancelled: shutdown\nhalf of it"]
        five_checks(run, models, key)


def test_the_time_limit_sets_the_event_and_the_goal_goes_on(local: LocalServer, models: ModelServer, key: str) -> None:
    run = local.api().start(_line(key, ("asked_and_slow", {})))
    assert run.wait_parked() == "awaiting_input"
    assert _results(run) == ["ended: the tool took longer than 0.1 s\nhalf of it"]
    assert of_type(run, "tool_result")[0]["is_error"] is True
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


# -- functions that never listen -----------------------------------------------------------------


def test_deaf_functions_are_left_behind_and_what_they_bring_late_is_dropped(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    names = [f"{key}-{number}" for number in range(5)]
    run = local.api().start(_line(key, *(("deaf", {"stage": name}) for name in names)))
    for name in names:
        stages[name].wait_begun()
    pool = local.main.engine.pool
    asked_at = time.monotonic()
    assert run.cancel(wait_ms=30_000)["parked"] is True
    assert time.monotonic() - asked_at < 2.5
    assert _receipt(run) == [*[("tool", "abandoned")] * 5, ("goal", "cancelled")]
    assert _results(run) == ["cancelled by operator"] * 5
    assert pool.abandoned == 5
    assert "pythonserver_abandoned_threads 5.0" in local.api().request("GET", "/metrics").text
    five_checks(run, models, key)
    before = all_events(run)
    for name in names:
        stages[name].go.set()
        stages[name].wait_ended()
    wait_until(lambda: pool.abandoned == 0, "the end of the threads")
    assert all_events(run) == before
    assert LATE not in str(before) + str(run.transcript())
    five_checks(run, models, key)


def test_a_deaf_function_that_ends_in_time_has_done_the_whole_of_it(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run, at = _start(local, key, "deaf")
    assert run.cancel()["stopped"] is True
    at.go.set()
    assert run.wait_parked() == "awaiting_input"
    assert _receipt(run) == [("tool", "already_done"), ("goal", "cancelled")]
    assert _results(run) == [LATE]  # it was in time
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


def test_the_time_limit_of_a_deaf_function_frees_the_goal_and_its_late_words_are_dropped(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FunctionTool, "ends_within_s", 0.05)
    slow, beside = f"{key}-slow", f"{key}-beside"
    run = local.api().start(_line(key, ("deaf_and_slow", {"stage": slow}), ("until_told", {"stage": beside})))
    stages[beside].wait_begun()
    words = "ended: the tool took longer than 0.1 s; it did not end, and what it may still do is not waited for"
    run.wait_event("tool_result", content=words)
    pool = local.main.engine.pool
    assert pool.abandoned == 1
    stages[slow].go.set()  # it speaks, and returns, while its goal is still open
    wait_until(lambda: pool.abandoned == 0, "the end of the thread")
    assert run.state == "running"
    stages[beside].go.set()
    assert run.wait_parked() == "awaiting_input"
    assert _results(run) == [words, f"{beside} in peace"]
    assert models.calls(key=key)[1].messages[-2]["content"] == words
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert LATE not in str(all_events(run)) + str(run.transcript())
    five_checks(run, models, key)


@pytest.mark.parametrize("count", [MAX_ABANDONED + 4, pytest.param(3 * MAX_ABANDONED + 4, marks=pytest.mark.slow)])
def test_many_stops_of_deaf_functions_use_up_nothing_and_the_server_says_when_it_has_too_many(
    models: ModelServer, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(FunctionTool, "ends_within_s", 0.01)
    threads_before = threading.active_count()
    with LocalServer(tmp_path, models.url, call_threads=1, **FIELDS) as server:
        api, pool = server.api(), server.main.engine.pool
        run = api.start("say hello")
        run.wait_parked()
        held: list[Stage] = []
        for number in range(count):
            if len(held) == MAX_ABANDONED:
                assert threading.active_count() - threads_before < MAX_ABANDONED + 20
                _check_no_more(run, models, f"{key}-{number}")
                _let_go(held)
                wait_until(lambda: pool.abandoned == 0, "the end of the threads")
                assert _readyz(api) == 200
            name = f"{key}-stage{number}"
            held.append(stages[name])
            run.say(_line(key, ("deaf", {"stage": name})))
            stages[name].wait_begun()
            assert run.cancel(wait_ms=30_000)["parked"] is True
            wait_until(lambda: (pool.busy, pool.abandoned) == (0, len(held)), "the places")
        assert len(held) == 4
        assert _readyz(api) == 200
        five_checks(run, models, key)
        ended_at = time.monotonic()
    assert time.monotonic() - ended_at < 10  # it did not wait for the four that are still at work
    assert pool.abandoned == 4
    _let_go(held)
    wait_until(lambda: pool.abandoned == 0, "the end of the last ones")


def _check_no_more(run: Run, models: ModelServer, key: str) -> None:
    """So many are left behind that none is begun which may be left too; the model is told, and the turn goes on."""
    answer = run.api.request("GET", "/readyz")
    assert (answer.status_code, str(MAX_ABANDONED) in answer.text) == (503, True)
    for name in ("deaf", "until_told"):
        run.say(_line(key, (name, {"stage": key})))
        assert run.wait_parked() == "awaiting_input"
        assert _results(run)[-1].startswith(f"{MAX_ABANDONED} tool calls on this server did not end")
        assert run.transcript()[-1]["content"] == "t1 t2 "
    assert not stages[key].begun.is_set()


def _let_go(held: list[Stage]) -> None:
    for stage in held:
        stage.go.set()
    held.clear()


# -- many turns, one agent -------------------------------------------------------------------------


def test_each_turn_sees_its_own_event_and_cause(local: LocalServer, models: ModelServer, key: str) -> None:
    first, at_first = _start(local, f"{key}-first", "asked")
    second, at_second = _start(local, f"{key}-second", "asked")
    assert at_first.event is not at_second.event
    assert first.cancel(reason="the first", wait_ms=30_000)["parked"] is True
    assert at_second.event is not None
    assert at_second.scope is not None
    assert (at_second.event.is_set(), at_second.scope.cause, at_second.ended.is_set()) == (False, None, False)
    assert second.state == "running"
    second.terminate(reason="the second")
    at_second.wait_ended()
    assert at_first.cause is not None
    assert at_second.cause is not None
    assert (at_first.cause.reason, at_second.cause.reason) == ("the first", "the second")
    assert second.wait_parked() == "cancelled"
    five_checks(first, models, f"{key}-first")
    five_checks(second, models, f"{key}-second")


def test_stops_of_every_other_turn_at_once_reach_those_alone(local: LocalServer, models: ModelServer, key: str) -> None:
    keys = [f"{key}-{number}" for number in range(10)]
    runs = [_start(local, each, "until_told")[0] for each in keys]
    assert len({id(stages[each].event) for each in keys}) == 10
    in_threads(5, lambda number: runs[2 * number].cancel())
    events = [stages[each].event for each in keys]
    assert [event is not None and event.is_set() for event in events] == [True, False] * 5
    for each in keys:
        stages[each].go.set()
    for number, (each, run) in enumerate(zip(keys, runs, strict=True)):
        assert run.wait_parked() == "awaiting_input"
        expected = f"{each} in peace" if number % 2 else f"cancelled by operator\n{each} stopped"
        assert _results(run) == [expected]
        assert len(models.calls(key=each)) == 1 + number % 2
    for each, run in zip(keys, runs, strict=True):
        five_checks(run, models, each)


def test_two_calls_of_one_turn_have_an_event_each_and_a_limit_of_one_leaves_the_other(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(_line(key, ("asked_and_slow", {}), ("until_told", {"stage": key})))
    stages[key].wait_begun()
    run.wait_event("tool_result", content="ended: the tool took longer than 0.1 s\nhalf of it")
    assert stages[key].event is not None
    assert not stages[key].event.is_set()
    stages[key].go.set()
    assert run.wait_parked() == "awaiting_input"
    assert _results(run)[1] == f"{key} in peace"
    five_checks(run, models, key)
