"""The decorator ``@tool``, and one call of a function as a tool."""

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope, current_scope
from core.tool.python_function import FunctionTool, Progress, Stops, ToolFailed, as_text, mark_of, tool
from core.tool.tool import ABANDON_AFTER_S, ToolResult, ToolRun

USER = Cause(CauseWord.USER)


class Said:
    """Where the output of a call goes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, stream: str, text: str) -> None:
        assert stream == "stdout"
        self.texts.append(text)


def _run(said: Said | None = None) -> ToolRun:
    return ToolRun(Scope.root().open(Level.CALL, "call"), "goal", "call", said or Said())


def _tool(function: Callable[..., Any], cap: int = 4096, timeout_ms: int = 120_000, **options: Any) -> FunctionTool:
    return FunctionTool(tool(**options)(function) if mark_of(function) is None else function, cap, timeout_ms)


# -- the decorator ---------------------------------------------------------------------------


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(name="times-ten", description="Ten times as much.", timeout_ms=1500)
def scaled(a: int) -> int:
    """Not told."""
    return a * 10


def test_a_marked_function_is_called_from_python_as_before() -> None:
    assert (add(1), add(1, b=5), scaled(3)) == (3, 6, 30)
    assert add.__name__ == "add"


def test_a_tool_is_as_its_function_says_unless_the_decorator_says_otherwise() -> None:
    plain, told = FunctionTool(add, 4096, 120_000), FunctionTool(scaled, 4096, 120_000)
    assert (plain.name, plain.description, plain.timeout_s) == ("add", "Add two numbers.", 120)
    assert (told.name, told.description, told.timeout_s) == ("times-ten", "Ten times as much.", 1.5)
    assert plain.ends_within_s == told.ends_within_s == ABANDON_AFTER_S
    assert plain.run({"a": 1}, _run()) == ToolResult("3")


def test_a_function_without_a_word_is_described_by_its_name() -> None:
    def silent() -> None: ...

    assert _tool(silent).description == "silent"


def test_a_decorator_around_a_marked_function_is_what_is_called() -> None:
    def twice(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def around(*args: Any, **kwargs: Any) -> int:
            return 2 * function(*args, **kwargs)

        return around

    assert FunctionTool(twice(add), 4096, 1000).run({"a": 1}, _run()) == ToolResult("6")


def _neither() -> None: ...
def _tells(tell: Progress) -> None: ...
def _takes_event(stop: threading.Event) -> None: ...
def _takes_scope(scope: Scope) -> None: ...


@pytest.mark.parametrize(
    ("function", "stops"),
    [
        (_neither, Stops.IS_ABANDONED),
        (_tells, Stops.IS_ABANDONED),
        (_takes_event, Stops.IS_ASKED),
        (_takes_scope, Stops.IS_ASKED),
    ],
)
def test_a_function_that_takes_an_event_or_the_scope_is_asked(function: Callable[..., None], stops: Stops) -> None:
    assert FunctionTool(tool(function), 4096, 1000).stops is stops
    assert FunctionTool(tool(stops=Stops.ABORTS)(function), 4096, 1000).stops is Stops.ABORTS


async def _async() -> None: ...


async def _async_generator() -> Any:
    yield 1


def _generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (_async, "cannot take the async function _async: write one that is not"),
        (_async_generator, "cannot take the async function _async_generator"),
        (_generator, "cannot take the generator _generator"),
        (Said, "is for a function, not for type"),
        (functools.partial(add, 1), "is for a function, not for partial"),
        (len, "is for a function, not for builtin"),
        (staticmethod(add), "is for a function, not for staticmethod"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_no_plain_function_is_refused_at_once(thing: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        tool(thing)
    with pytest.raises(TypeError, match=words):
        tool(name="other")(thing)


@pytest.mark.parametrize("name", ["", "a b", "ä", "a" * 65, "a.b", "a\n"])
def test_a_name_that_no_model_takes_is_refused_at_once(name: str) -> None:
    def function() -> None: ...

    function.__name__ = name
    with pytest.raises(ValueError, match="give name= with 1 to 64 of"):
        tool(function)


def test_a_time_limit_below_a_millisecond_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="timeout_ms=0"):
        tool(timeout_ms=0)(_neither)


def test_a_coroutine_runs_in_a_loop_of_the_function() -> None:
    async def work() -> str:
        return "done"

    def function() -> str:
        return asyncio.run(work())

    with ThreadPoolExecutor(1) as thread:  # like a call; this one has a loop of the browser's tests
        assert thread.submit(_tool(function).run, {}, _run()).result() == ToolResult("done")


# -- what it returns ----------------------------------------------------------------------------


class Place(BaseModel):
    name: str
    at: tuple[int, int] = (1, 2)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("as it is ", "as it is "),
        (None, ""),
        (Place(name="Köln"), '{"name":"Köln","at":[1,2]}'),
        ({"a": [1, None, Place(name="x")], "b": {1}}, '{"a":[1,null,{"name":"x","at":[1,2]}],"b":[1]}'),
        ([1, "zwei", object], f'[1,"zwei","{object}"]'),
        ({"nan": float("nan")}, '{"nan":NaN}'),
        (7, "7"),
        (True, "True"),
        ((1, 2), "(1, 2)"),
        ("half \ud800", "half \ufffd"),
        ({"a": "half \ud800"}, '{"a":"half \ufffd"}'),
        ("a\0b", "a\ufffdb"),
        ({"a": "b\0"}, '{"a":"b\\u0000"}'),
    ],
    ids=ascii,
)
def test_what_a_function_returns_becomes_a_text(returned: object, text: str) -> None:
    assert as_text(returned) == text


def test_a_long_result_is_shortened() -> None:
    def function() -> str:
        return "x" * 1_000_000

    content = _tool(function, cap=1024 * 1024).run({}, _run()).content
    assert len(content) <= 64 * 1024
    assert "bytes left out" in content
    assert len(_tool(function, cap=2048).run({}, _run()).content) <= 2048


@pytest.mark.parametrize("error", [ValueError("secret"), ToolFailed("no paper"), SystemExit(1)])
def test_an_error_of_the_function_is_left_to_whoever_runs_the_call(error: BaseException) -> None:
    def function() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        _tool(function).run({}, _run())
    assert caught.value is error


# -- progress ---------------------------------------------------------------------------------


def test_progress_is_handed_on_at_once_and_whole_before_the_end() -> None:
    said = Said()

    def function(tell: Progress) -> None:
        tell("one ")
        assert said.texts == ["one "]
        tell("two ")
        tell("thr\ud800ee")

    _tool(function).run({}, _run(said))
    assert "".join(said.texts) == "one two thr\ufffdee"


def test_what_was_said_so_far_comes_before_the_end_of_a_call_that_is_left_behind() -> None:
    said, order = Said(), list[str]()

    def function(tell: Progress) -> None:
        tell("in time ")
        tell("gathered ")
        run.leave_behind()
        order.append("left")

    run = _run(said)
    run.leave_behind = lambda: order.append("".join(said.texts))
    _tool(function).run({}, run)
    assert order == ["in time gathered ", "left"]  # what was said so far came first


def test_more_progress_than_the_cap_ends_the_call() -> None:
    said = Said()

    def function(tell: Progress, stop: threading.Event) -> str:
        tell("x" * 1000)
        assert not stop.is_set()
        tell("y" * 1000)
        assert stop.is_set()
        tell("z")
        return "so far"

    run = _run(said)
    result = _tool(function, cap=1024).run({}, run)
    assert "".join(said.texts) == "x" * 1000 + "y" * 24
    assert run.limit_hit is CauseWord.OUTPUT_LIMIT
    assert result == ToolResult("ended: the progress was longer than 1024 bytes\nso far", is_error=True)


# -- stops --------------------------------------------------------------------------------------


def test_the_event_is_of_the_call_and_set_when_its_scope_is_stopped() -> None:
    events: list[threading.Event] = []

    def function(cancel_event: threading.Event) -> str:
        events.append(cancel_event)
        assert type(cancel_event) is threading.Event
        assert not cancel_event.is_set()
        run.scope.cancel(USER)
        assert cancel_event.is_set()
        return "half"

    made = _tool(function)
    for _ in range(2):
        run = _run()
        assert made.run({}, run) == ToolResult("half")
        assert (run.outcome, run.item(0.0)["how"]) == (Outcome.CANCELLED, "it ended when asked")
    assert events[0] is not events[1]


def test_the_scope_is_that_of_the_call() -> None:
    def function(scope: Scope) -> None:
        assert scope is run.scope
        run.scope.cancel(USER)
        scope.sleep(60)

    run = _run()
    with pytest.raises(Cancelled):
        _tool(function).run({}, run)
    assert run.outcome is Outcome.CANCELLED


def test_a_function_never_begins_under_a_stop() -> None:
    begun: list[bool] = []

    def function(cancel_event: threading.Event) -> None:
        begun.append(True)

    run = _run()
    run.scope.cancel(USER)
    with pytest.raises(Cancelled):
        _tool(function).run({}, run)
    assert (begun, run.outcome) == ([], Outcome.NOT_STARTED)


def _ends(run: ToolRun, error: BaseException | None, listens: bool) -> Callable[..., str]:
    """A function that is stopped at work, and then returns, or raises."""

    def deaf() -> str:
        run.scope.cancel(USER)
        if error is not None:
            raise error
        return "the whole of it"

    def asked(cancel_event: threading.Event) -> str:
        return deaf()

    return asked if listens else deaf


@pytest.mark.parametrize(
    ("listens", "error", "outcome"),
    [
        (True, None, Outcome.CANCELLED),
        (True, ValueError(), Outcome.CANCELLED),
        (False, None, Outcome.ALREADY_DONE),
        (False, ValueError(), Outcome.FAILED),
    ],
)
def test_the_receipt_tells_a_function_that_was_asked_from_one_that_heard_nothing(
    listens: bool, error: BaseException | None, outcome: Outcome
) -> None:
    run = _run()
    made = _tool(_ends(run, error, listens))
    if error is None:
        assert made.run({}, run) == ToolResult("the whole of it")
    else:
        with pytest.raises(ValueError):
            made.run({}, run)
    assert run.outcome is outcome


def test_a_function_that_aborts_itself_through_the_scope_may_say_so() -> None:
    run = _run()
    made = _tool(_ends(run, None, listens=True), stops=Stops.ABORTS)
    made.run({}, run)
    assert (made.stops, run.outcome) == (Stops.ABORTS, None)  # whoever runs it says: aborted


def test_a_stop_that_comes_after_the_end_finds_the_call_done() -> None:
    def function(cancel_event: threading.Event) -> str:
        return "done"

    run = _run()
    _tool(function).run({}, run)
    run.scope.cancel(USER)
    assert run.outcome is Outcome.ALREADY_DONE


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("secret"),
            "ended: the tool took longer than 1 s\nthe tool failed: internal error (RuntimeError)",
        ),
        (ToolFailed("3 of 5 done"), "ended: the tool took longer than 1 s\n3 of 5 done"),
    ],
)
def test_a_function_that_raises_at_its_time_limit_is_told_with_the_limit(error: Exception, words: str) -> None:
    def function(cancel_event: threading.Event) -> str:
        run.limit(Cause(CauseWord.DEADLINE, "the tool took longer than 1 s"))
        raise error

    run = _run()
    with pytest.raises(ToolFailed) as caught:
        _tool(function).run({}, run)
    assert caught.value.detail == words


def test_current_scope_is_left_to_whoever_runs_the_call() -> None:
    def function() -> bool:
        return current_scope() is run.scope

    run = _run()
    with run.scope.entered():
        assert _tool(function).run({}, run) == ToolResult("True")
