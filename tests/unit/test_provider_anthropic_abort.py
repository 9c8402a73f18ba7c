"""A stop reaches a request to the Anthropic API at every point of its answer: what is special about that form.

What is the same for every provider is in test_provider_abort.py.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from core.provider.anthropic import AnthropicProvider
from core.provider.provider import Delta, Reasoning, Text, Usage
from tests.support.anthropic_kit import WHOLE, delta, opened, said, start, stopped
from tests.support.provider_kit import Running, stop_at_once
from tests.support.raw_server import PATIENCE_S, Peer, RawServer, self_signed

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def streams(*events: bytes) -> Callable[[Peer], None]:
    """Sends these events and then nothing more."""

    def begin(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"".join(events))

    return begin


def sends(data: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(data)


THINKING = opened("thinking", thinking="", signature="") + delta("thinking_delta", thinking="hm")
IN_A_CALL = opened("tool_use", 1, id="a", name="f", input={}) + delta("input_json_delta", 1, partial_json='{"x":')
#: What the server sends before it falls silent -> the last delta that must have been seen by then.
PHASES: dict[str, tuple[Callable[[Peer], None], Delta | None]] = {
    "before headers": (lambda peer: None, None),
    "after headers": (streams(b": hello\n\n"), None),
    "after the start": (streams(start()), Usage(7, None)),
    "while thinking": (streams(start(), THINKING), Reasoning("hm")),
    "in the text": (streams(start(), said("x")), Text("x")),
    "in the input of a tool call": (streams(start(), said("x"), IN_A_CALL), Text("x")),
    "after the stop reason": (streams(start(), said("x"), stopped()), Usage(7, 3)),
    "in a body with a length": (sends(HEAD + b"Content-Length: 9999\r\n\r\n" + said("x")), Text("x")),
    "in a body until close": (sends(HEAD + b"Connection: close\r\n\r\n" + said("x")), Text("x")),
    "in a whole message": (
        sends(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n" + WHOLE[:40]),
        None,
    ),
    "in an error body": (sends(b"HTTP/1.1 529 Overloaded\r\nContent-Length: 9999\r\n\r\nfai"), None),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_while_waiting_for_headers_or_body(phase: str, tls: bool, tmp_path: Path) -> None:
    begin, last = PHASES[phase]

    def script(peer: Peer) -> None:
        peer.read_request()
        begin(peer)
        peer.reached.set()
        peer.wait_hang_up()

    context, certificate = self_signed(str(tmp_path)) if tls else (None, True)
    with RawServer(script, context) as server:
        running = Watched(AnthropicProvider(server.url, verify=certificate), last)
        assert server.peer().reached.wait(PATIENCE_S)
        assert last is None or running.seen.wait(PATIENCE_S)

        stop_at_once(running)

        assert server.peer().hung_up.wait(PATIENCE_S)
        assert last is None or running.deltas[-1] == last


class Watched(Running):
    """A request that tells when a certain delta has come."""

    def __init__(self, provider: AnthropicProvider, last: Delta | None) -> None:
        self.seen = threading.Event()
        watch = self

        class Deltas(list[Delta]):
            def append(self, delta: Delta) -> None:
                super().append(delta)
                if delta == last:
                    watch.seen.set()

        self.kept = Deltas()
        super().__init__(provider)

    @property
    def deltas(self) -> list[Delta]:
        """What came, in order."""
        return self.kept

    @deltas.setter
    def deltas(self, _: list[Delta]) -> None:
        """The list is ours."""
