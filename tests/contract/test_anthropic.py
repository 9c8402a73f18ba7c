"""The same server in front of the Anthropic Messages API: runs, plans, retries, and stops that it cannot be asked for."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import goal, say_done, start_plan, start_streaming
from tests.support.servers import ServerProcess


def _usage(run: Run) -> dict[str, Any]:
    return run.wait_event("usage")


def _words_of(call: ServedCall) -> int:
    """What the stand-in counts as the input of a call."""
    return sum(len(str(message["content"]).split()) for message in call.messages)


def test_an_answer_is_streamed_and_its_tokens_are_counted(
    anthropic_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = anthropic_server.api().start(script("trickle", tokens=3, reasoning=1, interval_ms=0, key=key))
    events = run.events()
    assert "".join(event["text"] for event in events if event["type"] == "reasoning") == "r1 "
    assert run.transcript()[-1]["content"] == "t1 t2 t3 "
    (call,) = models.calls(key=key)
    usage = _usage(run)
    assert (usage["source"], usage["partial"]) == ("observed", False)
    assert (usage["input_tokens"], usage["output_tokens"]) == (_words_of(call), 4)
    five_checks(run, models, key)


def test_a_stop_in_the_middle_of_a_stream_shuts_it_and_the_input_was_counted(
    anthropic_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = anthropic_server.api().start(script("trickle", tokens=400, interval_ms=50, key=key))
    run.wait_event("text")
    models.wait_tokens(10, key=key)
    stopped_at = time.time()
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    (call,) = models.wait_closed(1, key=key)
    assert call.closed_at is not None
    assert call.closed_at - stopped_at < 0.5
    assert call.close_reason == "client_gone"
    assert call.tokens_after(stopped_at) <= 2
    outcomes = {item["kind"]: item["outcome"] for item in answer["receipt"]}
    assert outcomes["model_call"] == "aborted"
    usage = _usage(run)
    assert (usage["partial"], usage["input_tokens"]) == (True, _words_of(call))
    said = run.transcript()[-1]
    assert said["stopped"] is True
    assert said["content"].startswith("t1 ")
    five_checks(run, models, key)


@pytest.mark.parametrize(
    "line",
    [("silent", {}), ("silent", {"headers": 1}), ("nonstream", {}), ("prefill", {"headers": 1})],
    ids=["no-answer", "headers-and-no-answer", "one-whole-reply", "prefill"],
)
def test_a_call_without_a_first_token_is_closed_at_once(
    anthropic_server: ServerProcess, models: ModelServer, key: str, line: tuple[str, dict[str, int]]
) -> None:
    run = anthropic_server.api().start(script(line[0], **line[1], key=key))
    models.wait_open(1, key=key)
    stopped_at = time.time()
    run.cancel(wait_ms=30_000)
    (call,) = models.wait_closed(1, key=key)
    assert call.closed_at is not None
    assert call.closed_at - stopped_at < 0.5
    assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"
    five_checks(run, models, key)


def test_a_plan_is_made_by_a_tool_that_must_be_called_and_its_goals_are_worked_on(
    anthropic_server: ServerProcess, models: ModelServer, key: str
) -> None:
    goals = [
        {"id": "facts", "title": "Facts", "prompt": say_done(key), "depends_on": []},
        {"id": "sum", "title": "Sum up", "prompt": say_done(key), "depends_on": ["facts"]},
    ]
    run = anthropic_server.api().start(script("plan", plan={"goals": goals}, key=key), planning="auto")
    run.wait_parked()
    assert {name: each["status"] for name, each in run.goals().items()} == {"facts": "COMPLETED", "sum": "COMPLETED"}
    planning, *working = models.calls(key=key)
    assert planning.must_call == "make_plan"
    assert [call.must_call for call in working] == [None, None]
    five_checks(run, models, key)


def test_many_parallel_goals_are_stopped_together(
    anthropic_server: ServerProcess, models: ModelServer, key: str
) -> None:
    prompts = [script(name, tokens=900, key=key) for name in ("silent", "nonstream", "prefill", "trickle")] * 3
    run = start_plan(anthropic_server.api(), *(goal(f"g{n}", prompt) for n, prompt in enumerate(prompts)))
    models.wait_open(len(prompts), key=key)
    stopped_at = time.time()
    run.cancel()
    calls = models.wait_open(0, key=key)
    assert all(call.closed_at is not None and call.closed_at - stopped_at < 1 for call in calls)
    five_checks(run, models, key)


def test_an_overloaded_server_is_asked_again(anthropic_server: ServerProcess, models: ModelServer, key: str) -> None:
    line = script("busy", status=529, times=1, retry_after_s=0, tokens=1, key=key)
    run = anthropic_server.api().start(line)
    run.wait_parked()
    assert run.transcript()[-1]["content"] == "t1 "
    assert [call.status for call in models.calls(key=key)] == [529, 200]
    five_checks(run, models, key)


def test_a_stop_ends_a_wait_that_the_server_asked_for(
    anthropic_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = anthropic_server.api().start(script("busy", status=529, retry_after_s=300_000, key=key))
    retry = run.wait_event("retry")
    assert (retry["wait_ms"], retry["capped"]) == (60_000, True)
    assert run.cancel(wait_ms=30_000)["parked"] is True
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


def test_what_was_said_is_sent_with_the_next_message(
    anthropic_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(anthropic_server.api(), models, key)
    run.cancel(wait_ms=30_000)
    cut = run.transcript()[-1]["content"]
    run.say(say_done(key))
    run.wait_parked()
    system, *said = models.calls(key=key)[-1].messages
    assert "was stopped" in system["content"]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert said[1]["content"] == cut
    assert said[2]["content"] == say_done(key)
    five_checks(run, models, key)


@pytest.mark.parametrize("line", [("html", {}), ("halfjson", {}), ("nothing", {}), ("error", {"status": 401})])
def test_a_failed_call_fails_the_turn_with_words_and_the_next_message_works(
    anthropic_server: ServerProcess, models: ModelServer, key: str, line: tuple[str, dict[str, int]]
) -> None:
    run = anthropic_server.api().start(script(line[0], **line[1], key=key))
    events = run.events()
    assert "turn_failed" in [event["type"] for event in events]
    assert "a-test-key" not in str(events)
    five_checks(run, models, key)


@pytest.fixture(scope="module")
def with_shell(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may run the shell tool."""
    folder = tmp_path_factory.mktemp("anthropic-shell")
    with ServerProcess(folder, models.url, LLM_PROVIDER="anthropic", TOOLS_ALLOWED="shell") as process:
        yield process


def test_a_tool_round_goes_out_as_the_api_wants_it_and_stays_so_in_the_next_turn(
    with_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    line = script("toolcall", name="shell", arguments={"command": "echo hello"}, count=2, rounds=2, tokens=1, key=key)
    run = with_shell.api().start(line)
    run.wait_parked()
    assert run.transcript()[-1]["content"] == "t1 "
    first, second, third = models.calls(key=key)
    assert [call.status for call in (first, second, third)] == [200, 200, 200]
    assert [m["role"] for m in third.messages if m["role"] != "system"] == ["user", *["assistant", "tool", "tool"] * 2]
    assert all("hello" in message["content"] for message in third.messages if message["role"] == "tool")
    run.say(say_done(key))
    run.wait_parked()
    assert models.calls(key=key)[-1].status == 200
    five_checks(run, models, key)


def test_after_a_stop_inside_a_tool_the_next_message_works(
    with_shell: ServerProcess, models: ModelServer, key: str
) -> None:
    line = script("toolcall", name="shell", arguments={"command": "sleep 60"}, count=2, key=key)
    run = with_shell.api().start(line)
    run.wait_event("tool_call")
    models.wait_closed(1, key=key)
    assert run.cancel(wait_ms=30_000)["parked"] is True
    run.say(say_done(key))
    run.wait_parked()
    results = [message for message in models.calls(key=key)[-1].messages if message["role"] == "tool"]
    assert [message["content"].partition("\n")[0] for message in results] == ["cancelled by operator"] * 2
    five_checks(run, models, key)
