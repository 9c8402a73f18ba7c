"""What tests of the HTTP tool share: a call on a thread, and scripts of the server that it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator

from core.tool.http_request import HttpRequest
from tests.support.raw_server import PATIENCE_S, Peer, RawServer
from tests.support.shell_kit import Answer, ShellCall

LOOPBACK = ("127.0.0.0/8",)
#: Far above what a stop takes (below 10 ms), far below every time limit of a request.
AT_ONCE_S = 2.0


def tool(**options: Any) -> HttpRequest:
    """The tool, which may reach the servers of the tests."""
    return HttpRequest(**{"private_networks": LOOPBACK, **options})


class HttpCall(ShellCall):
    """One call, running on a thread; see :class:`ShellCall`."""

    def __init__(self, url: str, made: HttpRequest | None = None, **arguments: Any) -> None:
        made = made or tool()
        super().__init__(made, "")  # type: ignore[arg-type]  # it only runs it
        self._arguments = {"url": url, **arguments}
        Draft202012Validator(made.parameters).validate(self._arguments)
        self.start()

    def stop_at_once(self) -> Answer:
        """Stop it; it ends at once, and returns this."""
        answer = self.stop()
        assert self.took_s < AT_ONCE_S
        return answer


def fetch(url: str, made: HttpRequest | None = None, **arguments: Any) -> Answer:
    """A whole call."""
    return HttpCall(url, made, **arguments).answer()


def says(data: bytes) -> Callable[[Peer], None]:
    """A script: these bytes for the first request, and then it waits for the client to hang up."""

    def script(peer: Peer) -> None:
        peer.read_request()
        peer.send(data)
        peer.reached.set()
        peer.wait_hang_up()

    return script


def answers(body: bytes, head: str = "Content-Type: text/plain", status: str = "200 OK") -> Callable[[Peer], None]:
    """A script: this answer to every request."""

    def script(peer: Peer) -> None:
        while peer.read_request() is not None:
            peer.send(f"HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    return script


def redirects(*targets: str, status: str = "302 Found", last: bytes = b"arrived") -> Callable[[Peer], None]:
    """A script: ``/`` leads to the first target, ``/1`` to the second, and so on; what lies beyond is answered."""

    def script(peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            number = len(targets) if "?" in request.path else int(request.path.strip("/") or 0)
            if number < len(targets):
                peer.send(f"HTTP/1.1 {status}\r\nLocation: {targets[number]}\r\nContent-Length: 0\r\n\r\n".encode())
            else:
                peer.answer(last, content_type="text/plain")

    return script


def requests_of(server: RawServer) -> list[Any]:
    """All requests that came, in order of their connections."""
    return [request for peer in server.peers for request in peer.requests]


def wait_seen_close(server: RawServer, number: int = 0) -> None:
    """The server has seen the client hang up."""
    assert server.peer(number).hung_up.wait(PATIENCE_S)
