"""A fallback model: asked when the first one is at its end, seen by nobody so far, and never after a stop."""

import socket
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Cancelled, Cause, CauseWord, GoalCancelledException, Scope
from core.errors import (
    ProviderError,
    ProviderNonsense,
    ProviderRejected,
    ProviderSilent,
    ProviderUnreachable,
)
from core.events import EventType
from core.provider.backoff import RetryPolicy
from core.provider.failures import NoSuchModel, ServerRejected, ServerUnreachable, cancelled_by_gateway
from core.provider.fallback import may_another_answer
from core.provider.model_call import ModelCall
from core.provider.openai import OpenAIProvider
from core.provider.provider import Reasoning, Text, ToolCall, Usage
from tests.support.model_kit import USER, Models, Port, Said, agent_of, ask, goal_scope, new_asked, says
from tests.support.provider_kit import Running, after_request, cut
from tests.support.race_kit import Later
from tests.support.raw_server import RawServer, self_signed
from tests.support.servers import gate

DOWN = ServerUnreachable("refused", is_retryable=True, is_connected=False)
BROKE = ServerUnreachable("broke off", is_retryable=False)


@pytest.mark.parametrize("status", [400, 403, 404, 408, 422, 429, 500, 501, 503, 529])
def test_what_one_model_refuses_another_may_take(status: int) -> None:
    assert may_another_answer(ProviderRejected("no", status))
    assert may_another_answer(ServerRejected("no", status, is_retryable=True))


@pytest.mark.parametrize("status", [301, 401, 405, 407])
def test_a_wrong_key_or_address_is_wrong_for_every_model(status: int) -> None:
    assert not may_another_answer(ProviderRejected("no", status))


def test_a_server_that_was_reached_may_have_another_model_and_one_that_was_not_has_none() -> None:
    assert may_another_answer(BROKE)
    assert may_another_answer(ProviderUnreachable("broke off"))
    assert not may_another_answer(DOWN)


def test_nonsense_is_a_models_own_and_silence_is_an_answer() -> None:
    assert may_another_answer(ProviderNonsense("half of JSON"))
    assert may_another_answer(NoSuchModel("none"))
    assert not may_another_answer(ProviderSilent("nothing"))


def failure_of(url: str) -> ServerUnreachable:
    error = Running(OpenAIProvider(url)).wait().error
    assert isinstance(error, ServerUnreachable), repr(error)
    return error


def test_whether_there_was_a_connection_is_told_by_the_transport(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert not failure_of(f"http://127.0.0.1:{port}/v1").is_connected
    context, _ = self_signed(str(tmp_path))
    with RawServer(lambda peer: None, context) as untrusted:
        assert not failure_of(f"{untrusted.url}/v1").is_connected
    with RawServer(lambda peer: None) as hangs_up:
        assert failure_of(f"{hangs_up.url}/v1").is_connected
    with RawServer(after_request(cut(b": nothing yet\n\n"))) as breaks_off:
        assert failure_of(f"{breaks_off.url}/v1").is_connected


# -- the agent -----------------------------------------------------------------------------


def test_the_fallback_is_asked_once_the_attempts_are_exhausted_and_the_event_names_it() -> None:
    models, port = Models({"first": ServerRejected("busy", 503, is_retryable=True), "second": says("here")}), Port()

    assert ask(agent_of(models, fallback="second"), port=port) == "here"

    assert models.asked == ["first"] * 3 + ["second"]
    retries = port.of(EventType.RETRY)
    assert [(each["attempt"], each.get("model"), each.get("fallback")) for each in retries] == [
        (1, None, None), (2, None, None), (3, "second", True)
    ]  # fmt: skip
    assert (retries[-1]["wait_ms"], retries[-1]["reason"]) == (0, "busy")
    assert [usage["model"] for usage in port.of(EventType.USAGE)] == ["second"]


def test_a_failure_that_no_repetition_mends_goes_to_the_fallback_at_once() -> None:
    models = Models({"first": ProviderRejected("no such model", 404), "second": says("here")})
    assert ask(agent_of(models, fallback="second")) == "here"
    assert models.asked == ["first", "second"]


@pytest.mark.parametrize("error", [ProviderRejected("key", 401), DOWN, ProviderSilent("nothing")], ids=repr)
def test_where_no_other_model_would_help_none_is_asked(error: ProviderError) -> None:
    models = Models({"first": error})
    with pytest.raises(type(error)):
        ask(agent_of(models, fallback="second"))
    assert set(models.asked) == {"first"}


@pytest.mark.parametrize("seen", [Text("some"), Reasoning("hm"), ToolCall("1", "t", "{}")], ids=repr)
def test_once_a_part_of_the_answer_was_seen_nobody_else_is_asked(seen: Any) -> None:
    models = Models({"first": [seen, ProviderNonsense("then nonsense")]})
    with pytest.raises(ProviderNonsense):
        ask(agent_of(models, fallback="second"))
    assert models.asked == ["first"]


def test_a_count_of_tokens_is_no_part_of_an_answer() -> None:
    models, port = Models({"first": [Usage(7, 0), BROKE], "second": says("here")}), Port()
    assert ask(agent_of(models, fallback="second"), port=port) == "here"
    assert [usage["model"] for usage in port.of(EventType.USAGE)] == ["first", "second"]


def test_the_fallback_has_attempts_of_its_own_and_is_the_last() -> None:
    busy = ServerRejected("busy", 503, is_retryable=True)
    models = Models({"first": busy, "second": ServerRejected("busy too", 503, is_retryable=True)})
    with pytest.raises(ServerRejected, match="busy too"):
        ask(agent_of(models, fallback="second"))
    assert models.asked == ["first"] * 3 + ["second"] * 3


def test_a_goal_stays_with_the_fallback_and_the_next_goal_tries_the_first_again() -> None:
    answers: list[Said] = [ProviderNonsense("half"), says("back again")]
    models = Models({"first": lambda _: answers.pop(0), "second": says("here")})
    agent, asked = agent_of(models, fallback="second"), new_asked()

    assert [ask(agent, asked), ask(agent, asked), ask(agent)] == ["here", "here", "back again"]
    assert models.asked == ["first", "second", "second", "first"]


def test_without_a_fallback_or_with_the_same_model_nothing_changes() -> None:
    for fallback in (None, "first"):
        models = Models({"first": ProviderNonsense("half")})
        with pytest.raises(ProviderNonsense):
            ask(agent_of(models, fallback=fallback))
        assert models.asked == ["first"]


# -- a stop is no fault of a provider ------------------------------------------------------

STOPS = [Cause(word) for word in (CauseWord.USER, CauseWord.OPERATOR, CauseWord.DEADLINE, CauseWord.SHUTDOWN)]
each_cause = pytest.mark.parametrize("cause", STOPS, ids=lambda cause: str(cause.word))


@each_cause
def test_a_stop_in_an_attempt_asks_no_second_model_though_the_attempt_ends_with_an_error(cause: Cause) -> None:
    scope = goal_scope()

    def stopped(call: ModelCall) -> Said:
        scope.cancel(cause)
        return ProviderNonsense("half of an answer")  # as a cut connection looks

    models = Models({"first": stopped})
    with pytest.raises(Cancelled) as stop:
        ask(agent_of(models, fallback="second"), new_asked(scope))
    assert (stop.value.cause, models.asked) == (cause, ["first"])


def test_a_499_asks_no_second_model() -> None:
    models = Models({"first": lambda call: cancelled_by_gateway(call.scope)})
    with pytest.raises(GoalCancelledException):
        ask(agent_of(models, fallback="second"))
    assert models.asked == ["first"]


@each_cause
def test_a_stop_between_the_failure_and_the_fallback_wins_and_nothing_is_announced(cause: Cause) -> None:
    models, port, scope = Models({"first": ProviderNonsense("half")}), Port(), goal_scope()
    with gate("agent.after_failure") as failed:
        asking = Later(lambda: ask(agent_of(models, fallback="second"), new_asked(scope), port))
        failed.wait_reached()
        scope.cancel(cause)
        failed.open()
        with pytest.raises(Cancelled):
            asking.result()
    assert (models.asked, port.of(EventType.RETRY), len(port.calls)) == (["first"], [], 0)


def test_a_stop_just_before_the_fallback_is_asked_wins() -> None:
    models, scope = Models({"first": ProviderNonsense("half")}), goal_scope()
    with gate("agent.after_failure") as failed:
        asking = Later(lambda: ask(agent_of(models, fallback="second"), new_asked(scope)))
        failed.wait_reached()
        with gate("agent.before_request") as second:
            failed.open()
            second.wait_reached()
            scope.cancel(USER)
            second.open()
            with pytest.raises(Cancelled):
                asking.result()
    assert models.asked == ["first"]


def test_a_stop_in_the_wait_before_another_attempt_asks_no_second_model() -> None:
    scope = goal_scope()

    class Listening(Port):
        def emit(self, event_type: EventType, data: dict[str, Any], *more: Any) -> None:
            super().emit(event_type, data)
            if event_type is EventType.RETRY:
                scope.cancel(USER)

    models = Models({"first": ServerRejected("busy", 503, is_retryable=True)})
    patient = RetryPolicy(max_attempts=2, base_s=60)
    with pytest.raises(Cancelled):
        ask(agent_of(models, fallback="second", retries=patient), new_asked(scope), Listening())
    assert models.asked == ["first"]


def test_a_stop_while_the_fallback_answers_ends_that_too() -> None:
    scope = goal_scope()

    def stopped(call: ModelCall) -> Said:
        scope.cancel(USER)
        return ProviderNonsense("half")

    models = Models({"first": ProviderNonsense("half"), "second": stopped})
    with pytest.raises(Cancelled):
        ask(agent_of(models, fallback="second"), new_asked(scope))
    assert models.asked == ["first", "second"]


def test_a_scope_that_was_stopped_before_asks_nobody() -> None:
    scope: Scope = goal_scope()
    scope.cancel(USER)
    models = Models({})
    with pytest.raises(Cancelled):
        ask(agent_of(models, fallback="second"), new_asked(scope))
    assert models.asked == []
