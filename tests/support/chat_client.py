"""A plain client of chat completions, for tests that look at the bytes themselves."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit


class Asked:
    """A request that was sent; its answer is read by whoever wants it, with a limit of 20 s."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        # Kept, because the connection forgets its socket when the answer will close it.
        self._socket = connection.sock
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        """The answer's head; waits for it."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    @property
    def status(self) -> int:
        """The answer's status; waits for it."""
        return self.response.status

    def json(self) -> Any:
        """The whole answer as JSON."""
        return json.loads(self.response.read())

    def events(self) -> list[Any]:
        """The data of all frames of a stream, in order; ``[DONE]`` as text. Waits for the end."""
        frames = self.response.read().decode().split("\n\n")
        data = [frame.removeprefix("data: ") for frame in frames if frame]
        return [value if value == "[DONE]" else json.loads(value) for value in data]

    def named_events(self) -> list[tuple[str, str]]:
        """Name and data of all frames of a stream whose frames have both. Waits for the end."""
        frames = [frame.split("\n") for frame in self.response.read().decode().split("\n\n") if frame]
        return [(name.removeprefix("event: "), data.removeprefix("data: ")) for name, data in frames]

    def close(self) -> None:
        """Let go of the answer."""
        if self._response is not None:
            self._response.close()

    def hang_up(self) -> None:
        """Close the connection as a client does that gives up."""
        self._socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def asking(url: str, text: str, *, token: str | None = None, **body: Any) -> Iterator[Asked]:
    """Send a streamed request with one user message; ``body`` adds to it or replaces parts of it."""
    whole: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    whole |= body
    if token is not None:
        whole["metadata"] = {"cancellation_token": token}
    with _sent(url, "/v1/chat/completions", whole, {}) as asked:
        yield asked


@contextmanager
def asking_messages(url: str, text: str, **body: Any) -> Iterator[Asked]:
    """The same in the form of the Anthropic Messages API."""
    messages = [{"role": "user", "content": text}]
    whole: dict[str, Any] = {"model": "m", "max_tokens": 1000, "stream": True, "messages": messages, **body}
    with _sent(url, "/v1/messages", whole, {"anthropic-version": "2023-06-01"}) as asked:
        yield asked


@contextmanager
def _sent(url: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> Iterator[Asked]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    with closing(connection):
        connection.request("POST", path, json.dumps(body), headers)
        with closing(Asked(connection)) as asked:
            yield asked


def text_of(events: list[Any]) -> str:
    """The text that a stream's chunks add up to."""
    deltas = [choice["delta"] for event in events if "choices" in event for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
