"""The end of ``python -m api``, however it ends: streams end, nothing is left, and a next start works."""

import os
import signal
import socket
import time
from collections.abc import Callable

import pytest
import requests

from api.gunicorn_server import DRAIN_S
from tests.support.launched import LIMIT_S, Launch, Launched, bearer, wait_until_gone
from tests.support.servers import wait_until

pytestmark = pytest.mark.spread(2)


def follow_a_run(server: Launched) -> requests.Response:
    """An event stream that nobody but the server will end."""
    headers = bearer(server.token)
    made = requests.post(f"{server.url}/v1/runs", json={"input": "hello"}, headers=headers, timeout=LIMIT_S)
    assert made.status_code == 201, made.text
    run_id = made.json()["run_id"]
    return requests.get(f"{server.url}/v1/runs/{run_id}/events", headers=headers, stream=True, timeout=LIMIT_S)


def test_a_signal_tells_what_runs_and_changes_nothing(launch: Launch) -> None:
    server = launch().wait_ready()
    with follow_a_run(server) as events:
        first = next(line for line in events.iter_lines(chunk_size=1) if b"goal_status" in line)
        assert first
        server.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: any("scheduler.py" in line for line in list(server.errors)), "the stacks are printed")
    assert any("<Scope turn t_" in line for line in server.errors)
    assert any("<Scope call model_call open>" in line for line in server.errors)
    assert requests.get(f"{server.url}/readyz", timeout=LIMIT_S).status_code == 200


def interrupt_like_a_terminal(server: Launched) -> None:
    os.killpg(server.process.pid, signal.SIGINT)


def terminate(server: Launched) -> None:
    server.process.terminate()


def hang_up(server: Launched) -> None:
    server.process.send_signal(signal.SIGHUP)


@pytest.mark.parametrize("end", [terminate, interrupt_like_a_terminal, hang_up])
def test_a_signal_ends_streams_and_processes_and_frees_the_data_dir(
    launch: Launch, end: Callable[[Launched], None]
) -> None:
    server = launch().wait_ready()
    processes = [server.process.pid, *server.children]
    assert len(processes) == 3
    with follow_a_run(server) as stream:
        lines = stream.iter_lines()
        next(lines)
        began = time.monotonic()

        end(server)

        for _ in lines:
            pass
        assert time.monotonic() - began < DRAIN_S, "the stream was cut at the end of the server's patience"
        assert server.wait_end() == 0
    assert time.monotonic() - began < 10
    wait_until_gone(processes)
    assert not any("Traceback" in line for line in server.errors), server.errors
    launch(LLM_BASE_URL="http://127.0.0.1:9").wait_ready()


def test_a_client_that_reads_nothing_does_not_hold_the_end(launch: Launch) -> None:
    server = launch().wait_ready()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as half:
        half.sendall(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n")
        began = time.monotonic()
        server.process.terminate()
        assert server.wait_end() == 0
    assert time.monotonic() - began < 18


@pytest.mark.parametrize("how", ["the master alone", "the whole group"])
def test_a_kill_leaves_nothing_and_the_next_start_works_at_once(launch: Launch, how: str) -> None:
    server = launch().wait_ready()
    processes = server.children
    with follow_a_run(server):
        if how == "the master alone":
            server.process.kill()
        else:
            os.killpg(server.process.pid, signal.SIGKILL)
        again = launch().wait_ready()

    assert server.wait_end() == -signal.SIGKILL
    wait_until_gone(processes)
    assert requests.get(f"{again.url}/livez", timeout=LIMIT_S).status_code == 200


def test_a_worker_that_dies_is_replaced_and_the_address_stays(launch: Launch) -> None:
    server = launch().wait_ready()
    worker = server.worker

    os.kill(worker, signal.SIGKILL)
    wait_until_gone([worker])

    assert requests.get(f"{server.url}/livez", timeout=LIMIT_S).status_code == 200
    assert requests.get(f"{server.url}/v1/runs", headers=bearer(server.token), timeout=LIMIT_S).ok
    assert len(server.lines) == 1
    assert server.worker != worker


def test_from_the_signal_on_new_connections_are_refused_while_the_server_still_drains(launch: Launch) -> None:
    server = launch().wait_ready()
    host, port = server.url.removeprefix("http://").split(":")
    with follow_a_run(server) as events, requests.Session() as kept:
        next(events.iter_lines(chunk_size=1))
        assert kept.get(f"{server.url}/readyz", timeout=LIMIT_S).status_code == 200
        server.process.terminate()

        def is_refused() -> bool:
            try:
                socket.create_connection((host, int(port)), timeout=LIMIT_S).close()
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                pass  # it had just come in when the door was shut
            return False

        wait_until(is_refused, "new connections are refused")
        assert server.process.poll() is None, "it was the end of the server that refused"
    assert server.wait_end() == 0
