"""How an executor is set up and closed, and what becomes of a turn whose caller does not wait for it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Scope
from core.errors import ConfigurationError
from core.extensions.embedding import Executor
from core.interrupt import InterruptController
from core.settings import Settings
from core.tool.registry import Toolbox
from tests.support.embedding_kit import Bench, calls, check_nothing_left, outcomes, stop_of
from tests.support.model_server import ModelServer, script
from tests.support.race_kit import Later
from tests.support.scripted_provider import Answer


def settings_for(url: str | None, folder: Path, **more: Any) -> Settings:
    """Settings as a program makes them, whatever the environment says."""
    return Settings(_env_file=None, llm_base_url=url, data_dir=folder, **more)


# -- from settings -----------------------------------------------------------------------------


def test_from_settings_come_the_model_server_the_agents_and_the_tools(
    models: ModelServer, tmp_path: Path, key: str
) -> None:
    agents = tmp_path / "agents.json"
    agents.write_text('[{"name": "writer", "tools": []}]')
    settings = settings_for(models.url, tmp_path, tools_allowed=("shell",), agents_file=agents)
    with Executor.from_settings(settings) as executor:
        assert {name: list(agent.profile.tools) for name, agent in executor._agents.items()} == {
            "default": ["shell"], "writer": []
        }  # fmt: skip
        arguments = {"command": "echo from the shell"}
        message = script("toolcall", name="shell", arguments=arguments, tokens=2, interval_ms=1, key=key)
        outcome = executor.run(message)
        assert outcome.state == "completed", outcome.error
        assert "from the shell" in str(outcome.messages)
        check_nothing_left(executor)


def test_a_real_gateway_is_asked_to_cancel(models: ModelServer, tmp_path: Path, key: str) -> None:
    controller = InterruptController()
    with Executor.from_settings(settings_for(models.url, tmp_path)) as executor:
        turn = Later(lambda: executor.run(script("silent", key=key), controller=controller))
        models.wait_open(key=key)
        controller.request("Esc")
        outcome = turn.result()
        assert stop_of(outcome) == ("cancelled", "Esc")
        assert outcomes(outcome)["model_call"] == {"cancelled"}
    assert models.wait_closed(key=key)[-1].close_reason == "cancelled"


def test_without_a_model_server_nothing_is_set_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="LLM_BASE_URL"):
        Executor.from_settings(settings_for(None, tmp_path))


def test_a_wrong_tool_leaves_nothing_open(
    models: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr("core.provider.de2generator.De2GeneratorProvider.close", lambda _: closed.append("provider"))
    with pytest.raises(ConfigurationError, match="no tool"):
        Executor.from_settings(settings_for(models.url, tmp_path, tools_allowed=("hammer",)))
    assert closed == ["provider"]


# -- closing -----------------------------------------------------------------------------------


def test_closing_stops_what_runs_and_waits_for_it(bench: Bench) -> None:
    turns = [bench.start(name) for name in ("A", "B")]
    bench.model("A").go(calls(1))
    bench.tool(1)
    bench.model("B")
    bench.executor.close()
    assert bench.executor._running == 0
    assert [each.result().state for each in turns] == ["cancelled"] * 2
    order = turns[0].result().order
    assert order is not None
    assert order.cause.word == "shutdown"
    assert outcomes(turns[0].result())["tool"] == {"aborted"}


def test_a_closed_executor_refuses_and_may_be_closed_again(bench: Bench) -> None:
    with bench.executor:
        pass
    bench.executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        bench.executor.run("hello")


def test_closing_ends_what_from_settings_has_opened_and_nothing_else(
    models: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr("core.provider.de2generator.De2GeneratorProvider.close", lambda _: closed.append("provider"))
    monkeypatch.setattr(Toolbox, "close", lambda _: closed.append("tools"))
    Executor.from_settings(settings_for(models.url, tmp_path)).close()
    assert closed == ["tools", "provider"]


# -- a caller that does not wait ---------------------------------------------------------------


def test_what_a_callback_raises_stops_the_turn_and_is_raised(bench: Bench) -> None:
    def on_event(event: Any) -> None:
        if event.type == "tool_call":
            raise KeyError("a bug of the caller's")

    turn = bench.start("hello", on_event=on_event)
    bench.model("hello").go(calls(1))
    with pytest.raises(KeyError, match="a bug of the caller's"):
        turn.result()
    check_nothing_left(bench.executor)
    assert len(bench.requests) == 1


def test_ctrl_c_ends_the_turn_before_it_is_raised(bench: Bench) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    scopes: list[Scope] = []

    def press() -> None:
        scopes.append(bench.model("hello").turn_scope)
        os.kill(os.getpid(), signal.SIGINT)

    try:
        pressing = Later(press)
        with pytest.raises(KeyboardInterrupt):
            bench.executor.run("hello")
    finally:
        signal.signal(signal.SIGINT, before)
    pressing.result()
    (scope,) = scopes
    assert scope.cause is not None
    assert (scope.cause.reason, scope.is_finished) == ("the caller left with KeyboardInterrupt", True)


def test_ctrl_c_while_the_turn_only_begins_ends_it_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    start, scopes = threading.Thread.start, []

    def start_and_press(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("t_"):
            scopes.append(bench.model("hello").turn_scope)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_and_press)
    with pytest.raises(KeyboardInterrupt):
        bench.executor.run("hello")
    assert [scope.is_finished for scope in scopes] == [True]


def test_a_signal_handler_may_request_the_stop(bench: Bench) -> None:
    controller = InterruptController()
    before = signal.signal(signal.SIGINT, lambda *_: controller.request("Ctrl-C"))

    def press() -> None:
        bench.model("hello")
        os.kill(os.getpid(), signal.SIGINT)

    try:
        pressing = Later(press)
        outcome = bench.executor.run("hello", controller=controller)
    finally:
        signal.signal(signal.SIGINT, before)
    pressing.result()
    assert stop_of(outcome) == ("cancelled", "Ctrl-C")


def test_events_come_on_the_callers_thread_and_none_is_lost_to_a_slow_callback(bench: Bench) -> None:
    threads: set[int] = set()
    texts: list[str] = []

    def on_event(event: Any) -> None:
        threads.add(threading.get_ident())
        if event.type == "text":
            texts.append(event.data["text"])

    caller: list[int] = []

    def work() -> Any:
        caller.append(threading.get_ident())
        return bench.executor.run("hello", on_event=on_event)

    turn = Later(work)
    for word in ("a", "b", "c"):
        bench.model("hello").go(word)
    bench.model("hello").go(Answer("d"))
    turn.result()
    assert (threads, texts) == (set(caller), ["a", "b", "c", "d"])


def test_no_event_follows_the_end_of_the_turn(bench: Bench) -> None:
    """A deaf tool comes back when its turn is over."""
    events: list[Any] = []
    controller = InterruptController()
    turn = bench.start("hello", controller=controller, on_event=events.append)
    bench.model("hello").go(calls(1))
    gate = bench.tool(1)
    gate.manner = "is deaf"
    controller.request()
    turn.result()
    count = len(events)
    results = [event for event in events if event.type == "tool_result"]
    assert len(results) == 1  # each call has one, also that which was left behind
    gate.go("too late")
    bench.stage.release()
    assert len(events) == count


def test_where_the_system_has_no_thread_left_nothing_is_left_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            bench.executor.run("hello")
    check_nothing_left(bench.executor)
