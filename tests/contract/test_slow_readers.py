"""Readers that do not read, that are not there, that come and go: the run does not notice, and nobody loses an event."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.api_client import PATIENCE_S, Run, in_threads, parse_events
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, say_done
from tests.support.servers import ServerProcess, wait_until

#: What a feed keeps is 10,000 events: twice and four times as many, written as fast as it goes.
MANY = [20_000, pytest.param(40_000, marks=pytest.mark.slow)]
#: KiB that the server may grow by meanwhile: what is kept for readers, the answer itself, and what Python makes of it.
GROWTH_KIB = 48 * 1024
RESYNC = {"event": "resync", "data": "{}"}


class StuckReader:
    """A client that asks for the events and then does not read them. Its kernel takes a few kilobytes, no more."""

    def __init__(self, run: Run) -> None:
        place = urlsplit(run.api.url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((place.hostname, place.port))
        head = f"GET {run.path}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {run.api.token}\r\n\r\n"
        self._socket.sendall(head.encode())
        self._response = http.client.HTTPResponse(self._socket)
        self._response.begin()
        assert self._response.status == 200

    def read_on(self) -> list[dict[str, str]]:
        """Now read, to the end of the stream: the whole frames."""
        try:
            body = self._response.read().decode()
        except http.client.IncompleteRead as error:  # dropped in the middle
            body = error.partial.decode(errors="ignore").rpartition("\n\n")[0]
        frames = [frame for frame in body.split("\n\n") if frame and not frame.startswith(":")]
        return [dict(line.split(": ", 1) for line in frame.split("\n")) for frame in frames]

    def close(self) -> None:
        """Hang up."""
        self._response.close()
        self._socket.close()


def _memory(server: ServerProcess) -> int:
    """KiB of the worker."""
    assert server.process is not None
    pid = server.process.pid
    worker = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    lines = Path(f"/proc/{worker}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def _count_readers(run: Run) -> float:
    lines = run.api.request("GET", "/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("pythonserver_stream_readers "))


def _texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"] for event in events if event["type"] == "text"]


def _words(count: int) -> list[str]:
    return [f"t{number} " for number in range(1, count + 1)]


def _is_parked(run: Run) -> bool:
    return run.state == "awaiting_input"


def _say_and_read(run: Run, line: str) -> tuple[list[dict[str, Any]], float]:
    """The events of a turn as one who reads gets them, and seconds from the message to the parking."""
    with run.stream(run.view()["last_seq"]) as reader:
        began = time.monotonic()
        run.say(line)
        for event in reader:
            if event["type"] == "awaiting_input":
                break
        return reader.seen, time.monotonic() - began


def _check_the_rest_is_there(frames: list[dict[str, str]], run: Run) -> None:
    """What the stuck one had got is a part of the log without a gap; coming back with its last id, it gets the rest."""
    ids = [int(frame["id"]) for frame in frames]
    assert ids == list(range(1, len(ids) + 1))
    whole = all_events(run)
    assert [json.loads(frame["data"]) for frame in frames] == whole[: len(ids)]
    assert 0 < len(ids) < len(whole)
    rest = run.events(lambda event: event["seq"] == whole[-1]["seq"], after=ids[-1])
    assert rest == whole[len(ids) :]


@pytest.mark.parametrize("many", MANY)
def test_a_reader_that_never_reads_slows_nobody_is_kept_in_bounds_and_told_to_resync(
    own: ServerProcess, models: ModelServer, key: str, many: int
) -> None:
    run = own.api().start(say_done(key))
    run.wait_parked()
    line = script("trickle", tokens=many, interval_ms=0, key=key)
    memory = _memory(own)
    _, alone_s = _say_and_read(run, line)
    with closing(StuckReader(run)) as stuck:
        seen, beside_s = _say_and_read(run, line)
        assert _texts(seen) == _words(many)
        assert _memory(own) - memory < GROWTH_KIB
        assert beside_s < 2 * alone_s + 5, "the machine may be busy, but nothing waits for the reader"
        *frames, last = stuck.read_on()
    assert last == RESYNC
    _check_the_rest_is_there(frames, run)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_reader_that_is_stuck_for_five_minutes_changes_nothing_for_the_run(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    seconds, rate = 300, 100
    run = own.api().start(say_done(key))
    run.wait_parked()
    memory = _memory(own)
    with closing(StuckReader(run)) as stuck:
        line = script("trickle", tokens=rate * seconds, interval_ms=1000 // rate, key=key)
        seen, took = _say_and_read(run, line)
        assert _texts(seen) == _words(rate * seconds)
        assert seconds * 0.95 < took < seconds * 1.1 + 5
        assert _memory(own) - memory < GROWTH_KIB
        assert _count_readers(run) == 0, "it was dropped, and its thread and its place are free"
        frames = stuck.read_on()
    assert RESYNC not in frames
    _check_the_rest_is_there(frames, run)


@pytest.mark.parametrize("many", MANY)
def test_a_run_that_nobody_reads_runs_to_its_end_and_keeps_nothing_for_readers(
    own: ServerProcess, models: ModelServer, key: str, many: int
) -> None:
    run = own.api().start(script("trickle", tokens=1, key=key))
    wait_until(lambda: _is_parked(run), "the first turn parks")
    memory = _memory(own)
    began = time.monotonic()
    run.say(script("trickle", tokens=many, interval_ms=0, key=key))
    models.wait_closed(2, key=key, timeout_s=5 * PATIENCE_S)
    assert time.monotonic() - began < 5 * PATIENCE_S
    wait_until(lambda: _is_parked(run), "the second turn parks")
    assert _memory(own) - memory < GROWTH_KIB
    assert _count_readers(run) == 0
    assert _texts(all_events(run)) == [*_words(1), *_words(many)]


def test_a_replay_from_any_number_is_the_rest_of_the_log_to_the_byte(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = server.api().start(script("trickle", tokens=12, interval_ms=0, key=key), interactive=False)
    run.wait_parked()
    whole = _frames(run, 0)
    assert len(whole) == run.view()["last_seq"]
    for after in range(len(whole) + 2):
        assert _frames(run, after) == whole[after:]


def _frames(run: Run, after: int) -> list[bytes]:
    """The frames of a stream that ends by itself."""
    body = run.api.request("GET", f"{run.path}/events?after={after}").content
    return [frame for frame in body.split(b"\n\n") if frame and not frame.startswith(b":")]


@pytest.mark.parametrize("seed", range(4))
def test_a_reader_that_comes_back_after_every_few_events_sees_each_event_once(
    server: ServerProcess, models: ModelServer, key: str, seed: int
) -> None:
    draw = random.Random(seed)
    run = server.api().start(script("trickle", tokens=150, interval_ms=4, key=key), interactive=False)
    got: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while not got or got[-1]["type"] != "run_completed":
        assert time.monotonic() < deadline
        headers = {"Last-Event-ID": str(got[-1]["seq"])} if got else {}
        response = run.api.request("GET", f"{run.path}/events", headers=headers, stream=True)
        wanted = draw.randint(1, 12)
        for event in parse_events(response):
            got.append(event)
            wanted -= 1
            if not wanted:
                break
        response.close()
    assert [event["seq"] for event in got] == list(range(1, len(got) + 1))
    assert _texts(got) == _words(150)


def test_readers_that_join_in_crowds_while_events_are_committed_all_see_the_same_log(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = server.api().start(script("trickle", tokens=2000, interval_ms=1, key=key), interactive=False)

    def read(index: int) -> list[bytes]:
        if index % 4:  # those of each wave come at the same moment, in the middle of a commit or not
            models.wait_tokens(500 * (index % 4), key=key)
        return _frames(run, 0)

    seen = in_threads(20, read, patience_s=3 * PATIENCE_S)
    assert all(frames == seen[0] for frames in seen)
    assert [int(frame.split(b"\n", 1)[0][4:]) for frame in seen[0]] == list(range(1, len(seen[0]) + 1))
    assert sum(b"event: text\n" in frame for frame in seen[0]) == 2000
