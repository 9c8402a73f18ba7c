"""The server as a user of its HTTP API sees it, and the five checks that end every stop test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import requests
from urllib3.exceptions import HTTPError

SECRET = "a-test-secret-of-at-least-thirty-two-bytes"
#: Every wait of a test. Generous: machines are noisy; speed is shown by the benchmarks.
PATIENCE_S = 30.0

PARKED_OR_OVER = ("awaiting_input", "completed", "cancelled", "failed")


def make_token(sub: str = "alice", secret: str = SECRET, **claims: Any) -> str:
    """A user-session token."""
    return jwt.encode({"sub": sub, "exp": int(time.time()) + 3600, **claims}, secret, algorithm="HS256")


class Api:
    """One user's view of a server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False
        self.token = token if token is not None else make_token()

    def close(self) -> None:
        """Let go of the connections."""
        self.session.close()

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Any request, with the bearer token."""
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return self.session.request(method, self.url + path, headers=headers, timeout=PATIENCE_S, **options)

    def get(self, path: str) -> Any:
        """The JSON of a 200."""
        answer = self.request("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: dict[str, Any] | None = None, expect: int = 200) -> Any:
        """The JSON of an answer with the expected status."""
        answer = self.request("POST", path, json={} if body is None else body)
        assert answer.status_code == expect, f"{answer.status_code}: {answer.text}"
        return answer.json()

    def start(self, text: str, planning: str = "none", **fields: Any) -> Run:
        """``POST /v1/runs``; one goal with the text as its prompt, unless told otherwise."""
        body = {"input": text, "planning": planning, **fields}
        return Run(self, self.post("/v1/runs", body, expect=201))


class Run:
    """One run, as its user sees it."""

    def __init__(self, api: Api, created: dict[str, Any]) -> None:
        self.api = api
        self.id: str = created["run_id"]
        self.session_id: str = created["session_id"]
        self.first_turn: str = created["turn_id"]
        self.path = f"/v1/runs/{self.id}"

    def view(self) -> dict[str, Any]:
        """``GET /v1/runs/{id}``."""
        return self.api.get(self.path)  # type: ignore[no-any-return]

    @property
    def state(self) -> str:
        """Its state now."""
        return str(self.view()["state"])

    def say(self, text: str, **fields: Any) -> dict[str, Any]:
        """``POST …/input``."""
        return self.api.post(f"{self.path}/input", {"text": text, **fields}, expect=202)  # type: ignore[no-any-return]

    def cancel(self, expect: int = 200, **fields: Any) -> dict[str, Any]:
        """``POST …/cancel``."""
        return self.api.post(f"{self.path}/cancel", fields, expect=expect)  # type: ignore[no-any-return]

    def terminate(self, expect: int = 200, **fields: Any) -> dict[str, Any]:
        """``POST …/terminate``."""
        return self.api.post(f"{self.path}/terminate", fields, expect=expect)  # type: ignore[no-any-return]

    def inbox(self) -> list[dict[str, Any]]:
        """The messages that wait."""
        return self.api.get(f"{self.path}/inbox")["messages"]  # type: ignore[no-any-return]

    def transcript(self) -> list[dict[str, Any]]:
        """The session's messages."""
        return self.api.get(f"{self.path}/transcript")["messages"]  # type: ignore[no-any-return]

    def goals(self, turn_id: str | None = None) -> dict[str, dict[str, Any]]:
        """Id -> goal of the plan, nested ones too."""
        found: dict[str, dict[str, Any]] = {}
        waiting = list(self.api.get(f"{self.path}/plan" + (f"?turn_id={turn_id}" if turn_id else ""))["goals"])
        while waiting:
            goal = waiting.pop(0)
            found[goal["id"]] = goal
            waiting.extend(goal["goals"])
        return found

    def stream(self, after: int = 0) -> EventReader:
        """Follow the events."""
        return EventReader(self, after)

    def events(self, until: Callable[[dict[str, Any]], bool] | None = None, after: int = 0) -> list[dict[str, Any]]:
        """The events so far and on, up to the first one for which ``until`` holds; default: the run waits or is over."""
        with self.stream(after) as reader:
            return reader.collect(until or _parks)

    def wait_event(self, event_type: str, after: int = 0, **fields: Any) -> dict[str, Any]:
        """The first event of that type with these fields."""
        return self.events(lambda event: _fits(event, event_type, fields), after)[-1]

    def wait_parked(self) -> str:
        """Wait until the run waits or is over, from now on; its state."""
        deadline = time.monotonic() + PATIENCE_S
        seen = 0
        while (state := self.state) not in PARKED_OR_OVER:
            assert time.monotonic() < deadline, f"the run is still {state}"
            seen = self.events(_parks, after=seen)[-1]["seq"]
        return state


def _parks(event: dict[str, Any]) -> bool:
    return event["type"] in ("awaiting_input", "run_completed", "run_cancelled", "run_failed")


def _fits(event: dict[str, Any], event_type: str, fields: dict[str, Any]) -> bool:
    return event["type"] == event_type and all(event.get(name) == value for name, value in fields.items())


class EventReader:
    """A reader of one run's event stream. Bounded: after :data:`PATIENCE_S` of silence it fails with what it saw."""

    def __init__(self, run: Run, after: int = 0) -> None:
        headers = {"Authorization": f"Bearer {run.api.token}", "Last-Event-ID": str(after)}
        self.response = requests.get(
            f"{run.api.url}{run.path}/events", headers=headers, stream=True, timeout=PATIENCE_S
        )
        assert self.response.status_code == 200, self.response.text
        self.seen: list[dict[str, Any]] = []
        self._events = parse_events(self.response)

    def __enter__(self) -> EventReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.response.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for event in self._events:
            self.seen.append(event)
            yield event

    def collect(self, until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Read on until an event fits; all that was seen."""
        deadline = time.monotonic() + PATIENCE_S
        for event in self:
            if until(event):
                return self.seen
            assert time.monotonic() < deadline, f"not seen in time; types: {[e['type'] for e in self.seen]}"
        raise AssertionError(f"the stream ended; types: {[event['type'] for event in self.seen]}")

    def collect_type(self, event_type: str, **fields: Any) -> dict[str, Any]:
        """Read on until an event of that type; that event."""
        return self.collect(lambda event: _fits(event, event_type, fields))[-1]


def parse_events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream; checks that each frame's id is its seq and that seq has no gaps."""
    previous: int | None = None
    frame: dict[str, str] = {}
    deadline = time.monotonic() + PATIENCE_S
    for line in _lines(response):
        if line.startswith(":"):  # also the comments that keep a silent stream open
            assert time.monotonic() < deadline, f"no event for so long after number {previous}"
            continue
        if line:
            name, _, value = line.partition(": ")
            frame[name] = value
            continue
        if "data" in frame and frame.get("event") != "resync":
            event = json.loads(frame["data"])
            assert int(frame["id"]) == event["seq"]
            assert frame["event"] == event["type"]
            assert previous is None or event["seq"] == previous + 1, "a gap in seq"
            previous = event["seq"]
            yield event
            deadline = time.monotonic() + PATIENCE_S
        frame = {}


def _lines(response: requests.Response) -> Iterator[str]:
    """Each line as soon as it has come. ``iter_lines`` would hold some back, or take the square of a long one's time."""
    pending = b""
    try:
        while data := response.raw.read1(65536, decode_content=True):
            *lines, pending = (pending + data).split(b"\n")
            yield from (line.decode() for line in lines)
    except HTTPError as error:
        raise requests.ConnectionError(error) from error


def in_threads(count: int, work: Callable[[int], Any], patience_s: float = PATIENCE_S) -> list[Any]:
    """Run ``work(0) … work(count - 1)`` at once, on a thread each, released together; their results in order."""
    together = threading.Barrier(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(index: int) -> None:
        together.wait(PATIENCE_S)
        try:
            results[index] = work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
        assert not thread.is_alive(), "a request hangs"
    if errors:
        raise errors[0]
    return results
