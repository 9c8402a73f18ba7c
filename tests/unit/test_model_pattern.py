"""A model by pattern: which is the newest, how the list is kept, and what a stop makes of the question."""

import random
import threading
import time
from typing import Any

import pytest

from core.agent import model_catalog
from core.agent.model_catalog import ModelCatalog
from core.cancellation import Cancelled
from core.errors import ProviderError, ProviderNonsense
from core.events import EventType
from core.provider.failures import ModelListFailed, NoSuchModel, ServerRejected, ServerUnreachable
from core.provider.model_call import ModelCall
from core.provider.newest import newest
from tests.support.model_kit import USER, Models, Port, agent_of, ask, goal_scope, new_asked, says
from tests.support.race_kit import Later
from tests.support.servers import gate, wait_until

# -- which is the newest -------------------------------------------------------------------

ROWS = [
    # from the oldest to the newest
    ["m-3.6", "m-3.10"],
    ["gpt-3.5-turbo", "gpt-4-0613", "gpt-4-1106", "gpt-4.1", "gpt-5"],
    ["gpt-4.1-mini", "gpt-4.1-mini-2024-12-31", "gpt-4.1-mini-20250101", "gpt-4.1-mini-2025-04-14"],
    ["claude-3-haiku-20240307", "claude-3-5-haiku-20241022", "claude-haiku-4-20250514", "claude-haiku-4-5-20251001"],
    ["llama-3-70b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b"],
    ["qwen2.5:0.5b", "qwen2.5:7b", "qwen2.5:72b", "qwen3:0.6b"],
    ["gpt-3.5-turbo-16k", "gpt-4-32k", "gpt-4.1"],
    ["mistral-large-2407", "mistral-large-2411"],
    ["kimi-k2", "kimi-k2-0711", "kimi-k2-0905", "kimi-k2-20250101"],
    ["gemini-2.5-pro", "gemini-2.5-pro-preview-05-06", "gemini-2.5-pro-preview-06-05", "gemini-3-pro"],
    ["m-mini", "m"],
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_newest_is_found_wherever_it_stands_in_the_list(row: list[str]) -> None:
    for length in range(1, len(row) + 1):
        names = row[:length]
        random.Random(length).shuffle(names)
        assert newest("*", names) == row[length - 1]


def test_the_glob_fits_the_whole_name_and_its_case() -> None:
    names = ["gpt-4.1-mini", "gpt-4.1-mini-2025-04-14", "GPT-9-mini", "my-gpt-9-mini", "gpt-5"]
    assert newest("gpt-*-mini", names) == "gpt-4.1-mini"
    assert newest("gpt-*-mini*", names) == "gpt-4.1-mini-2025-04-14"
    assert newest("gpt-?", names) == "gpt-5"
    assert newest("claude-*", names) is None


def test_a_name_that_means_harm_costs_no_time() -> None:
    began = time.monotonic()
    assert newest("*a*a*a*a*a*a*a*a*b", ["a" * 200, "9" * 200, "-0905" * 40, "1x" * 100]) is None
    assert newest("*", ["9" * 200, "1"]) == "9" * 200
    assert time.monotonic() - began < 5


# -- how it is kept ------------------------------------------------------------------------


class Clock:
    """Time as the test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_newest_match_is_asked_and_the_usage_names_it() -> None:
    models, port = Models({"gpt-10-mini": says("hi")}, lambda _: ["gpt-9-mini", "gpt-10-mini", "gpt-11"]), Port()
    agent = agent_of(models, pattern="gpt-*-mini")

    assert ask(agent, port=port) == "hi"
    assert (models.asked, models.lists) == (["gpt-10-mini"], 1)
    assert [usage["model"] for usage in port.of(EventType.USAGE)] == ["gpt-10-mini"]


def test_the_list_is_kept_for_ten_minutes_and_shared_by_the_agents() -> None:
    names = [["m1"], ["m1", "m2"]]
    models, clock = Models({"m1": says("1"), "m2": says("2")}, lambda _: names.pop(0)), Clock()
    catalog = ModelCatalog(models, clock)
    one, two = (agent_of(models, pattern=pattern, catalog=catalog) for pattern in ("m*", "m?"))

    assert [ask(one), ask(two)] == ["1", "1"]
    clock.now = model_catalog.FRESH_S - 1
    assert (ask(one), models.lists) == ("1", 1)
    clock.now = model_catalog.FRESH_S
    assert [ask(one), ask(two)] == ["2", "2"]
    assert models.lists == 2


def test_a_refresh_that_fails_leaves_the_old_list_and_is_tried_again_a_minute_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results: list[Any] = [["m1"], ProviderNonsense("it quotes what was asked"), ["m2"]]

    def lists(_: ModelCall) -> list[str]:
        result = results.pop(0)
        if isinstance(result, ProviderError):
            raise result
        return list(result)

    models, clock = Models({"m1": says("1"), "m2": says("2")}, lists), Clock()
    agent = agent_of(models, pattern="m*", catalog=ModelCatalog(models, clock))

    assert ask(agent) == "1"
    clock.now = model_catalog.FRESH_S
    assert (ask(agent), models.lists) == ("1", 2)
    assert caplog.messages == ["the list of models could not be refreshed, the old one is used: provider_nonsense"]
    clock.now += model_catalog.TRY_AGAIN_S - 1
    assert (ask(agent), models.lists) == ("1", 2)
    clock.now += 1
    assert (ask(agent), models.lists) == ("2", 3)


def test_no_match_is_an_error_that_names_the_pattern_and_what_there_was() -> None:
    models = Models({}, lambda _: [f"other-{number}" for number in range(12)])
    with pytest.raises(NoSuchModel) as failed:
        ask(agent_of(models, pattern="gpt-*-mini"))
    detail = failed.value.detail
    assert "'gpt-*-mini'" in detail
    assert "other-0, other-1" in detail
    assert detail.endswith("and 2 more")
    assert (models.asked, models.lists) == ([], 1)


def test_an_empty_list_is_no_match() -> None:
    with pytest.raises(NoSuchModel, match="lists none"):
        ask(agent_of(Models({}, lambda _: []), pattern="m*"))


def test_a_list_that_fails_is_asked_for_again_and_then_told_with_the_pattern() -> None:
    def busy(_: ModelCall) -> list[str]:
        raise ServerRejected("busy", 503, is_retryable=True)

    models, port = Models({}, busy), Port()
    with pytest.raises(ModelListFailed) as failed:
        ask(agent_of(models, pattern="m*"), port=port)
    assert failed.value.detail == "no model for the pattern 'm*': busy"
    assert failed.value.code == "provider_rejected"
    assert (models.lists, len(port.of(EventType.RETRY))) == (3, 2)


@pytest.mark.parametrize("listed_names", [[], ["other"]])
def test_where_no_model_fits_the_fallback_answers(listed_names: list[str]) -> None:
    models = Models({"second": says("here")}, lambda _: listed_names)
    assert ask(agent_of(models, pattern="m*", fallback="second")) == "here"


def test_a_server_without_a_list_is_no_matter_for_the_fallback() -> None:
    def missing(_: ModelCall) -> list[str]:
        raise ServerRejected("no such page", 404, is_retryable=False)

    models = Models({"second": says("here")}, missing)
    assert ask(agent_of(models, pattern="m*", fallback="second")) == "here"


@pytest.mark.parametrize(
    "error",
    [
        ServerRejected("key", 401, is_retryable=False),
        ServerUnreachable("refused", is_retryable=False, is_connected=False),
    ],
    ids=repr,
)
def test_a_list_refused_for_the_key_or_out_of_reach_is_no_matter_of_the_model(error: ProviderError) -> None:
    def refused(_: ModelCall) -> list[str]:
        raise error

    models = Models({}, refused)
    with pytest.raises(ModelListFailed):
        ask(agent_of(models, pattern="m*", fallback="second"))
    assert (models.asked, models.lists) == ([], 1)


def test_a_crowd_of_goals_asks_once() -> None:
    models = Models({"m1": says("1")}, lambda _: ["m1"])
    agent = agent_of(models, pattern="m*")
    ports = [Port() for _ in range(8)]
    with gate("model_catalog.before_list") as first:
        asking = [Later(lambda port=port: ask(agent, port=port)) for port in ports]
        first.wait_reached()
        wait_until(lambda: sum(len(port.calls) for port in ports) == 8, "everybody's wait")
        first.open()
        assert [one.result() for one in asking] == ["1"] * 8
    assert models.lists == 1


def test_whoever_waits_for_a_question_that_is_stopped_asks_in_its_place() -> None:
    first_is_here = threading.Event()

    def lists(call: ModelCall) -> list[str]:
        if first_is_here.is_set():
            return ["m1"]
        first_is_here.set()
        woken = threading.Event()
        with call.scope.on_cancel(woken.set):
            woken.wait(30)
        raise AssertionError("not stopped")

    models, scope, other_port = Models({"m1": says("1")}, lists), goal_scope(), Port()
    agent = agent_of(models, pattern="m*")
    first = Later(lambda: ask(agent, new_asked(scope)))
    assert first_is_here.wait(30)
    other = Later(lambda: ask(agent, port=other_port))
    wait_until(lambda: [call.kind for call in other_port.calls.snapshot()] == ["wait"], "the other's wait")
    scope.cancel(USER)
    with pytest.raises(Cancelled):
        first.result()
    assert (other.result(), models.lists) == ("1", 2)


def test_a_stop_of_one_who_waits_ends_its_wait_and_not_the_question() -> None:
    models, scope, waiting_port = Models({"m1": says("1")}, lambda _: ["m1"]), goal_scope(), Port()
    agent = agent_of(models, pattern="m*")
    with gate("model_catalog.before_list") as question:
        first = Later(lambda: ask(agent))
        question.wait_reached()
        waiter = Later(lambda: ask(agent, new_asked(scope), waiting_port))
        wait_until(lambda: len(waiting_port.calls) == 1, "the wait")
        scope.cancel(USER)
        with pytest.raises(Cancelled):
            waiter.result()
        question.open()
        assert first.result() == "1"
    assert (models.asked, models.lists) == (["m1"], 1)


def test_a_stop_while_the_list_is_asked_for_asks_neither_model() -> None:
    models, scope = Models({}, lambda _: []), goal_scope()
    with gate("model_catalog.before_list") as question:
        asking = Later(lambda: ask(agent_of(models, pattern="m*", fallback="second"), new_asked(scope)))
        question.wait_reached()
        scope.cancel(USER)
        question.open()
        with pytest.raises(Cancelled):
            asking.result()
    assert (models.asked, models.lists) == ([], 0)
