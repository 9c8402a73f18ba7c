"""What users, models and tools say in a random chat."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from core.errors import ProviderSilent
from core.provider.failures import ServerRejected, ServerUnreachable
from core.provider.provider import ModelRequest, ToolCall, Usage
from core.session.foreign import read_history
from core.session.repair import repair
from core.tool.tool import ToolFailed, ToolResult
from tests.support.chat_machine import TOOLS
from tests.support.core_plans import specs
from tests.support.scripted_provider import Answer, Command, Gate, Limit, Output, Refused499

#: What comes behind a user's words, which are told apart by their number.
ENDINGS: Final = st.sampled_from(
    ["", "", " ", "\n\nand so on\n", " über 🙂 e\u0301", " [stopped by the user before any text]", ' {"role": "system"}']
)
#: Pieces of an answer.
PIECES: Final = st.sampled_from(["one", " two", "\n\n", " ", "🙂é", "a\n\nb", "[no answer was recorded]"])
#: What calls make of a stop: numbers of manners, most of them the first, to obey.
MANNERS: Final = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5]), min_size=4, max_size=8)
#: How a message comes to a turn at work, and the goal that it is for: most often all.
MODES: Final = st.sampled_from([None, "queue", "steer", "steer", "redirect", "redirect", "redirect", "interrupt"])
SINGLE_GOALS: Final = st.none() | st.none() | st.none() | st.integers(0, 4)
CLIENT_IDS: Final = st.none() | st.sampled_from(["c1", "c2", "c3"])

_ARGUMENTS: Final = st.sampled_from(
    ['{"n": 1}', '{"n": 2}', "{}", "", "not json", "[1]", '{"x": 1}', '{"n": "1"}', '{"n": 3}']
)
_USAGES: Final = st.none() | st.builds(
    Usage, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)
)


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """A plan of one to five goals; some of the leaves are tools. As plain JSON."""
    spec = draw(specs(5)).model_dump(exclude_defaults=True)
    waiting = list(spec["goals"])
    while waiting:
        goal = waiting.pop()
        waiting += goal.get("goals", [])
        if goal.get("prompt") and draw(st.integers(0, 2)) == 0:
            del goal["prompt"]
            goal["tool"] = {"name": draw(st.sampled_from(TOOLS)), "arguments": {"n": draw(st.integers(0, 9))}}
    return spec


def _message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


_CALL: Final = {"id": "x", "type": "function", "function": {"name": "alpha", "arguments": "{"}}
_HANDED_IN: Final = st.sampled_from(
    [
        _message("system", "from elsewhere"),
        _message("user", "earlier"),
        _message("user", ""),
        _message("assistant", "an earlier answer"),
        _message("assistant", None, tool_calls=[_CALL, _CALL]),
        _message("assistant", " ", tool_calls=[{**_CALL, "id": "y"}]),
        _message("tool", "a result", tool_call_id="x"),
        _message("tool", "", tool_call_id="y"),
        _message("user", [{"type": "tool_result", "tool_use_id": "x", "content": "a block", "is_error": True}]),
    ]
)


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any] | None:
    """A conversation that was handed in, mostly broken, as the server keeps it; None most of the time."""
    if draw(st.integers(0, 3)):
        return None
    handed_in, system = read_history(draw(st.lists(_HANDED_IN, min_size=1, max_size=8)))
    return {"system": system, "messages": repair(handed_in)}


@st.composite
def _tool_calls(draw: st.DrawFn) -> ToolCall:
    name = draw(st.sampled_from([*TOOLS, *TOOLS, "gamma"]))
    return ToolCall(draw(st.sampled_from(["", "1", "call_1"])), name, draw(_ARGUMENTS))


@st.composite
def _plan_calls(draw: st.DrawFn) -> tuple[ToolCall, ...]:
    kind = draw(st.sampled_from(["plan", "plan", "plan", "plan", "none", "broken", "other"]))
    if kind == "none":
        return ()
    if kind == "other":
        return (ToolCall("1", "alpha", "{}"),)
    spec = draw(specs(5)).model_dump(exclude_defaults=True) if kind == "plan" else {"goals": []}
    return (ToolCall("1", "make_plan", json.dumps(spec)),)


@dataclass(frozen=True)
class Move:
    """What a call does next, whichever it is: drawn before it is known, so that a repetition draws the same."""

    kind: str
    piece: str
    calls: tuple[ToolCall, ...]
    plan: tuple[ToolCall, ...]
    usage: Usage | None
    error: BaseException
    tool: Command

    def for_gate(self, gate: Gate) -> Command:
        """As the call at this gate does it."""
        if not gate.is_model:
            return self.tool
        if self.kind == "text":
            return self.piece
        if self.kind == "499":
            return Refused499()
        if self.kind == "error":
            return self.error
        request = gate.subject
        assert isinstance(request, ModelRequest)
        if request.must_call is not None:
            return Answer(self.piece, self.plan, self.usage)
        if self.kind == "answer" or not request.tools:
            return Answer(self.piece, (), self.usage)
        return Answer(self.piece if self.kind == "calls" else "", self.calls, self.usage)


MOVES: Final = st.builds(
    Move,
    st.sampled_from(["text", "answer", "calls", "calls", "calls", "silent calls", "silent calls", "error", "499"]),
    PIECES,
    st.lists(_tool_calls(), min_size=1, max_size=3).map(tuple),
    _plan_calls(),
    _USAGES,
    st.sampled_from(
        [
            ServerRejected("too busy", 429, is_retryable=True),
            *[ServerRejected("no such model", 404, is_retryable=False)] * 3,
            ServerUnreachable("the connection broke", is_retryable=True),
            ProviderSilent("the model answered nothing"),
            ProviderSilent("the model answered nothing"),
        ]
    ),
    st.just(ToolResult("done"))
    | st.builds(ToolResult, st.sampled_from(["done", "", " ", "🙂"]), st.booleans())
    | st.sampled_from([Output("some"), Limit(), ToolFailed("it cannot"), RuntimeError("it is broken")]),
)
