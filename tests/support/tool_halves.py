"""Tools that have said half of what they say, cut in the middle of a character: what a stop must keep of it.

Also a module of tools: ``TOOL_MODULES`` names it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from core.tool.python_function import Progress, tool
from tests.support import mcp_kit
from tests.support.api_client import PATIENCE_S, Run
from tests.support.five_checks import check_results
from tests.support.http_kit import says
from tests.support.raw_server import Peer, RawServer
from tests.support.stop_matrix import World
from tests.support.stop_matrix_tools import call

#: Two whole characters of more than one byte; what follows in each case below is a part of a third.
WHOLE = "né ha日 "
CUT = f"{WHOLE}\N{REPLACEMENT CHARACTER}"
#: The first two of the three bytes of ``日``, and the first of the two escapes of an emoji.
_HALF_BYTES, _HALF_PAIR = b"\xe6\x97", "\ud83d"
#: By what :func:`gateway` knows a sub-agent's request.
SUB_PROMPT = "say half a character"


@tool
def halves(cancel_event: threading.Event, progress: Progress) -> str:
    """Says half a character and, stopped, returns another one."""
    progress(WHOLE + _HALF_PAIR)
    assert cancel_event.wait(PATIENCE_S)
    return f"returned {WHOLE}{_HALF_PAIR}"


@dataclass(frozen=True)
class Half:
    """One tool that has said something, and goes on for as long as nobody stops it."""

    name: str
    line: Callable[[World], str]
    #: All that it says while it runs, and what there is of it after the stop.
    ready: str
    said: str
    #: What the tool itself has put into its result, behind the line that says that it was stopped.
    kept: str
    #: Where that is in the result.
    kept_in: Callable[[str], str] = str

    def __str__(self) -> str:
        return self.name


def _member(name: str) -> Callable[[str], str]:
    return lambda content: str(json.loads(content)[name])


def _shell(world: World) -> str:
    octal = "".join(f"\\{byte:03o}" for byte in WHOLE.encode() + _HALF_BYTES)
    return call(world, "shell", {"command": f"printf '{octal}'; sleep 600"})


def _http(world: World) -> str:
    assert world.raw is not None
    return call(world, "http_request", {"url": world.raw.url})


_STEPS = "1/3 step 1\n2/3 step 2\n3/3 step 3\n"
HALVES = (
    Half("shell", _shell, WHOLE, CUT, CUT, _member("stdout")),
    Half("http-request", _http, WHOLE, CUT, CUT, _member("body")),
    Half("MCP-call", lambda world: mcp_kit.call_line(world.key, "one__progress", world.key), _STEPS, _STEPS, ""),
    Half("function", lambda world: call(world, "halves", {}), CUT, CUT, f"returned {CUT}"),
    Half("deaf-function", lambda world: call(world, "deaf", {"stage": world.key}), "begun\n", "begun\n", ""),
)


@contextmanager
def half_an_answer(world: World) -> Iterator[None]:
    """Who is on the other side of the request: its answer stops in the middle of a character."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 9999\r\n\r\n"
    with RawServer(says(head + WHOLE.encode() + _HALF_BYTES)) as world.raw:
        yield


def wait_said(run: Run, text: str) -> None:
    """Until the tools have said all of that; fails if they say something else."""
    said = ""

    def is_said(event: dict[str, Any]) -> bool:
        nonlocal said
        said += event["text"] if event["type"] == "tool_output" else ""
        assert text.startswith(said)
        return said == text

    run.events(is_said)


def gateway(peer: Peer) -> None:
    """A model that delegates; the sub-agent's says half a character and nothing more. Strict about the messages."""
    for request in iter(peer.read_request, None):
        if request.path == "/v1/cancel":
            peer.answer(b'{"status": "cancelled"}')
            continue
        messages = json.loads(request.body)["messages"]
        check_results([message for message in messages if message["role"] != "system"])
        if messages[-1]["content"] == SUB_PROMPT:
            _say_half(peer)
            return
        peer.answer(_delegating() if messages[-1]["content"] == "delegate" else _message(content="ok"))


def _say_half(peer: Peer) -> None:
    peer.begin_stream()
    for text in (WHOLE, _HALF_PAIR):
        peer.chunk(b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n")
    peer.reached.set()
    peer.wait_hang_up()


def _delegating() -> bytes:
    arguments = json.dumps({"goals": [{"id": "inside", "prompt": SUB_PROMPT}]})
    function = {"name": "delegate", "arguments": arguments}
    return _message("tool_calls", content=None, tool_calls=[{"id": "call_1", "type": "function", "function": function}])


def _message(finish_reason: str = "stop", **message: Any) -> bytes:
    choice = {"message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice]}).encode()
