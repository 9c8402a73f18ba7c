"""The stand-in gateway as a test uses it: started in a process of its own, asked for its log, waited on
by events.

``script()`` writes the line by which a user message chooses how the gateway behaves.
"""

import http.client
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

_SOURCES = Path(__file__).parents[2] / "PythonServer" / "src"
_READY = "de2generator listening on "


def script(name: str, /, **options: Any) -> str:
    """A script line: ``script("plan", plan={…})``. What is neither text nor a number is written as JSON.

    A list of strings repeats the option. White space in a value is written as JSON escapes, so it may
    only stand inside JSON.
    """
    words = ["/script", name]
    for key, value in options.items():
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        words += [f"{key}={_written(item)}" for item in (value if is_list else [value])]
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class ServedCall:
    """A record of the gateway's log. Times are ``time.time()`` of the gateway's process."""

    id: str
    token: str | None
    script: str
    key: str
    model: str
    stream: bool
    messages: list[dict[str, Any]]
    #: Names of the offered tools.
    tools: list[str]
    must_call: str | None
    started_at: float
    status: int | None
    first_byte_at: float | None
    asked_to_cancel_at: float | None
    closed_at: float | None
    #: ``open``, ``finished``, ``cancelled``, ``client_gone`` or ``dropped``.
    close_reason: str
    bytes_sent: int
    tokens_sent: int
    #: Tokens written after the cancel request had come.
    tokens_after_stop: int
    token_times: list[float] = field(repr=False)

    @property
    def is_open(self) -> bool:
        """Whether it is still being answered."""
        return self.close_reason == "open"

    @property
    def last_user_text(self) -> str:
        """Content of the last user message."""
        return next((str(m["content"]) for m in reversed(self.messages) if m["role"] == "user"), "")

    def tokens_after(self, moment: float) -> int:
        """Tokens written after a moment of ``time.time()``."""
        return sum(written > moment for written in self.token_times)


class ModelServer:
    """One gateway; a context manager. Ends with the test process.

    Every wait is bounded (20 s unless told otherwise) and fails with an ``AssertionError`` that shows the
    log. ``key`` narrows a question to calls whose script line has that ``key=``.
    """

    def __init__(
        self,
        *,
        upstream: str | None = None,
        model_file: str | Path | None = None,
        smollm2: bool = False,
        strict: bool = False,
        listed: tuple[str, ...] = (),
        tokens_per_second: float | None = None,
        port: int = 0,
        ready_timeout_s: float = 60,
    ) -> None:
        self._arguments = ["--port", str(port), "--die-with-parent", str(os.getpid())]
        self._arguments += ["--upstream", upstream] if upstream else []
        self._arguments += ["--model-file", str(model_file)] if model_file else []
        self._arguments += ["--smollm2"] if smollm2 else []
        self._arguments += ["--strict"] if strict else []
        self._arguments += [word for name in listed for word in ("--model", name)]
        if tokens_per_second is not None:
            self._arguments += ["--tokens-per-second", str(tokens_per_second)]
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[str] | None = None
        #: ``http://127.0.0.1:PORT``, once started.
        self.url = ""

    def start(self) -> Self:
        """Start and wait until it listens. Start it from a thread that lasts: it ends with that."""
        path = os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "de2generator", *self._arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            self.url = self._wait_ready(self._process)
        finally:
            if not self.url:
                self.stop()
        return self

    def stop(self) -> None:
        """End it; open calls are cut. Harmless if it has ended."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process
        return self._process.pid

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def calls(self, *, key: str = "", only_open: bool = False) -> list[ServedCall]:
        """The calls in order of arrival."""
        query = urlencode({"key": key, "open": int(only_open), "times": 1})
        _, body = self.request("GET", f"/log?{query}")
        return _calls(body)

    def clear(self, *, key: str = "") -> None:
        """Forget the closed calls, and what ``busy`` has counted."""
        self.request("DELETE", f"/log?{urlencode({'key': key})}")

    def wait_open(self, number: int = 1, *, key: str = "", timeout_s: float = 20) -> list[ServedCall]:
        """Wait until so many calls or more are open; 0: until none is. Returns the log."""
        return self.wait(timeout_s, open=number, key=key)

    def wait_calls(self, number: int, *, key: str = "", timeout_s: float = 20) -> list[ServedCall]:
        """Wait until so many calls have arrived, open or closed. Returns the log."""
        return self.wait(timeout_s, calls=number, key=key)

    def wait_closed(self, number: int = 1, *, key: str = "", timeout_s: float = 20) -> list[ServedCall]:
        """Wait until so many calls have closed. Returns the log."""
        return self.wait(timeout_s, closed=number, key=key)

    def wait_tokens(self, number: int, *, key: str = "", timeout_s: float = 20) -> list[ServedCall]:
        """Wait until so many tokens were written, all calls together. Returns the log."""
        return self.wait(timeout_s, tokens=number, key=key)

    def wait_asked(self, number: int = 1, *, key: str = "", timeout_s: float = 20) -> list[ServedCall]:
        """Wait until the cancel of so many calls was requested. Returns the log."""
        return self.wait(timeout_s, asked=number, key=key)

    def wait(self, timeout_s: float, **condition: Any) -> list[ServedCall]:
        """Wait for any condition of ``GET /log/wait``."""
        query = urlencode({**condition, "timeout_s": timeout_s, "times": 1})
        status, body = self.request("GET", f"/log/wait?{query}", timeout_s=timeout_s + 10)
        calls = _calls(body)
        wanted = {name: value for name, value in condition.items() if value != ""}
        shown = "\n".join(map(str, calls)) or "(no calls)"
        assert status == 200, f"the model server did not come to {wanted} in {timeout_s} s:\n{shown}"
        return calls

    def cancel(self, token: str) -> str:
        """``POST /v1/cancel``; the status word."""
        _, body = self.request("POST", "/v1/cancel", {"cancellation_token": token})
        return str(body["status"])

    def request(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30) -> tuple[int, Any]:
        """One request with a JSON answer; status and body. Not by ``requests``, which tests may replace."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def _wait_ready(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout
        deadline = time.monotonic() + self._ready_timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            line = process.stdout.readline()
            if line.startswith(_READY):
                return line.removeprefix(_READY).strip()
            assert line, "the model server ended before it was ready"
        raise AssertionError(f"the model server was not ready within {self._ready_timeout_s} s")


def _calls(body: dict[str, Any]) -> list[ServedCall]:
    return [ServedCall(**call) for call in body["calls"]]


def _written(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return "".join(f"\\u{ord(letter):04x}" if letter.isspace() else letter for letter in text)
