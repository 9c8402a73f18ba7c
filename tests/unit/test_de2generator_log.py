"""The stand-in gateway's log, its waits, and its life as a process."""

import http.client
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.chat_client import asking
from tests.support.model_server import ModelServer, script


@pytest.fixture
def gateway() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def test_the_log_tells_what_was_asked_and_what_was_answered(gateway: ModelServer) -> None:
    tools = [{"type": "function", "function": {"name": "shell"}}]
    line = script("trickle", tokens=4, interval_ms=1, key="k")
    with asking(gateway.url, line, token="tok", tools=tools) as asked:
        body = asked.response.read()
    [call] = gateway.wait_closed(1)
    assert (call.token, call.script, call.key, call.model, call.stream) == ("tok", "trickle", "k", "m", True)
    assert call.last_user_text == line
    assert (call.tools, call.must_call, call.status) == (["shell"], None, 200)
    assert (call.tokens_sent, call.bytes_sent) == (4, len(body))
    assert call.first_byte_at is not None
    assert call.closed_at is not None
    assert call.started_at <= call.first_byte_at <= call.closed_at


def test_a_wait_is_woken_when_its_number_is_reached(gateway: ModelServer) -> None:
    with asking(gateway.url, script("silent", key="a")), asking(gateway.url, script("silent", key="b")) as second:
        assert len(gateway.wait_open(2)) == 2
        second.hang_up()
        gateway.wait_closed(1)
        assert [call.key for call in gateway.calls(only_open=True)] == ["a"]
        assert gateway.wait(20, open_exactly=1)
    assert gateway.wait_open(0)


def test_a_wait_in_vain_fails_and_shows_the_log(gateway: ModelServer) -> None:
    with asking(gateway.url, script("silent")):
        gateway.wait_open(1)
        with pytest.raises(AssertionError, match=r"(?s)open.*2.*silent"):
            gateway.wait_open(2, timeout_s=0.05)


def test_clearing_forgets_closed_calls_only(gateway: ModelServer) -> None:
    with asking(gateway.url, script("nothing")) as asked:
        asked.events()
    gateway.wait_closed(1)
    with asking(gateway.url, script("silent")):
        gateway.wait_open(1)
        gateway.clear()
        assert [call.script for call in gateway.calls()] == ["silent"]
        assert len(gateway.wait_calls(1)) == 1


@pytest.mark.parametrize("query", ["", "?open=many", "?timeout_s=soon&open=1"])
def test_a_wrong_wait_is_a_400(gateway: ModelServer, query: str) -> None:
    assert gateway.request("GET", f"/log/wait{query}")[0] == 400


def test_the_log_stream_tells_of_a_call_as_it_opens_is_asked_and_closes(gateway: ModelServer) -> None:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=20)
    try:
        connection.request("GET", "/log/stream")
        stream = connection.getresponse()
        assert stream.readline().startswith(b":")
        with asking(gateway.url, script("silent"), token="t") as asked:
            gateway.wait_open(1)
            gateway.cancel("t")
            assert asked.status == 499
        lines = (stream.readline() for _ in range(7))
        events = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.strip()]
        stream.close()
    finally:
        connection.close()
    assert [event["event"] for event in events] == ["opened", "asked_to_cancel", "closed"]
    assert events[-1]["call"]["close_reason"] == "cancelled"


def test_unknown_routes_are_json_and_health_is_ok(gateway: ModelServer) -> None:
    assert gateway.request("GET", "/healthz") == (200, {"status": "ok"})
    assert gateway.request("GET", "/nowhere")[0] == 404
    assert gateway.request("GET", "/v1/cancel")[0] == 405
    status, models = gateway.request("GET", "/v1/models")
    assert (status, models["object"]) == (200, "list")


def test_it_stops_at_once_though_calls_are_open(gateway: ModelServer) -> None:
    process = os.pidfd_open(gateway.pid)
    with asking(gateway.url, script("silent")):
        gateway.wait_open(1)
        os.kill(gateway.pid, signal.SIGTERM)
        assert _is_ended(process)
    os.close(process)


def test_a_taken_port_is_one_clear_line(gateway: ModelServer) -> None:
    port = gateway.url.rpartition(":")[2]
    command = [sys.executable, "-m", "de2generator", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("de2generator: ")
    assert done.stderr.count("\n") == 1


def test_it_dies_with_the_process_that_started_it() -> None:
    starter = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'de2generator', '--port', '0', '--die-with-parent']\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", starter]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert _is_ended(child)
        finally:
            os.close(child)


def _is_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd ends within 20 s."""
    return bool(select.select([pidfd], [], [], 20)[0])
