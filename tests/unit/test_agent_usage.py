"""Usage of a call: as counted, or estimated and said so; never 0 for what is not known."""

import contextlib
from collections.abc import Generator
from typing import Any

import pytest

from core.agent.agent import Agent, AgentProfile
from core.agent.ports import Asked
from core.call import CallBook
from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope
from core.errors import ProviderSilent, ProviderUnreachable
from core.events import EventType
from core.provider.backoff import RetryPolicy
from core.provider.model_call import ModelCall
from core.provider.provider import Delta, Finish, ModelRequest, Text, Usage

REQUEST = ModelRequest([{"role": "user", "content": "x" * 40}], "m")


class Port:
    """Hears of events."""

    def __init__(self) -> None:
        self.calls = CallBook()
        self.usage: list[dict[str, Any]] = []

    def emit(self, event_type: EventType, data: dict[str, Any], *_: Any) -> None:
        if event_type is EventType.USAGE:
            self.usage.append(data)

    workers: Any = None

    def begin_request(self, owner: object, call: ModelCall) -> None:
        pass

    def end_request(self, owner: object, is_cut: bool) -> None:
        pass

    def note_call(self, *_: Any) -> None:
        raise AssertionError("no tools")

    note_output = note_result = note_call


class Says:
    """A provider that says these deltas and then ends as it is told."""

    can_be_asked = False

    def __init__(self, *deltas: Delta, end: str = "finish") -> None:
        self._deltas = deltas
        self._end = end

    def stream(self, request: ModelRequest, call: ModelCall) -> Generator[Delta, None, None]:
        call.mark_sent()
        yield from self._deltas
        if self._end == "stop":
            call.scope.cancel(Cause(CauseWord.USER))
            call.scope.checkpoint()
        if self._end == "break":
            raise ProviderUnreachable("it broke off")
        if self._end == "silent":
            raise ProviderSilent("the model answered nothing")
        yield Finish("stop")

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        raise AssertionError

    def close(self) -> None:
        pass


def _usage(provider: Says) -> dict[str, Any]:
    port = Port()
    agent = Agent(AgentProfile("a", "", "m"), provider, 0.5, RetryPolicy(max_attempts=1))
    scope = Scope.root().open(Level.GOAL, "g")
    with contextlib.suppress(Cancelled, ProviderSilent, ProviderUnreachable):
        agent.ask(lambda: REQUEST, Asked(object(), "g", scope, lambda *_: None), port)
    (usage,) = port.usage
    return usage


@pytest.mark.parametrize("end", ["stop", "break"])
def test_a_cut_off_answer_is_estimated_where_the_server_counted_nothing(end: str) -> None:
    usage = _usage(Says(Usage(0, 0), Text("12345678"), end=end))
    assert (usage["partial"], usage["source"]) == (True, "estimated")
    assert (usage["input_tokens"], usage["output_tokens"]) == (10, 2)


def test_what_the_server_counted_of_a_cut_off_answer_is_kept() -> None:
    usage = _usage(Says(Text("12345678"), Usage(18, 3), end="stop"))
    assert (usage["source"], usage["input_tokens"], usage["output_tokens"]) == ("observed", 18, 3)


def test_before_any_text_the_output_is_unknown_and_not_zero() -> None:
    usage = _usage(Says(end="stop"))
    assert (usage["source"], usage["output_tokens"]) == ("estimated", None)


def test_a_whole_answer_is_as_the_server_counted_it() -> None:
    usage = _usage(Says(Text("hello"), Usage(7, 1)))
    assert usage == {"model": "m", "partial": False, "source": "observed", "input_tokens": 7, "output_tokens": 1}


@pytest.mark.parametrize(
    ("counts", "source", "tokens"), [([Usage(7, 0)], "observed", (7, 0)), ([], "estimated", (10, None))]
)
def test_an_answer_that_says_nothing_was_a_whole_one(
    counts: list[Delta], source: str, tokens: tuple[int, int | None]
) -> None:
    usage = _usage(Says(*counts, end="silent"))
    assert (usage["partial"], usage["source"]) == (False, source)
    assert (usage["input_tokens"], usage["output_tokens"]) == tokens
