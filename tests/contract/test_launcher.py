"""``python -m api``: what a start prints and refuses."""

import contextlib
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.launched import LIMIT_S, Launch, Launched, bearer, command_of

SECRET = "a-configured-secret-for-the-tests-of-the-launcher-0123456789"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """One server for all tests that leave it as it is."""
    launched = Launched(tmp_path_factory.mktemp("server"), REMOTE_SESSION_API_TOKEN="remote-abc").wait_ready()
    yield launched
    launched.close()


def refusal(launched: Launched) -> str:
    """The one line of a start that was refused."""
    assert launched.wait_end() == 2
    assert launched.lines == []
    assert len(launched.errors) == 1
    assert launched.errors[0].startswith("pythonserver: ")
    return launched.errors[0]


def raw(server: Launched, request: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


# -- a start ---------------------------------------------------------------------------------


def test_a_start_without_settings_prints_one_line_with_a_page_and_a_token_that_works(server: Launched) -> None:
    assert requests.get(f"{server.url}/livez", timeout=LIMIT_S).status_code == 200

    answer = requests.post(f"{server.url}/stopplan", json={}, headers=bearer(server.token), timeout=LIMIT_S)

    assert answer.status_code == 200
    assert answer.json()["stopped"] is False
    assert len(server.lines) == 1


def test_the_stand_in_listens_where_the_line_says(server: Launched) -> None:
    answer = requests.post(f"{server.stand_in}/v1/cancel", json={"cancellation_token": "unknown"}, timeout=LIMIT_S)

    assert answer.headers["Content-Type"].startswith("application/json")


def test_no_secret_is_printed(server: Launched) -> None:
    secret = (server.folder / "data" / "jwt_secret").read_text().strip()

    shown = "\n".join(server.lines + server.errors)

    assert secret not in shown
    assert "remote-abc" not in shown


def test_the_stand_in_is_not_given_what_it_has_no_business_with(server: Launched) -> None:
    stand_in = next(pid for pid in server.children if b"de2generator" in command_of(pid))

    assert b"remote-abc" not in Path(f"/proc/{stand_in}/environ").read_bytes()


def test_the_file_limit_is_the_hard_limit(server: Launched) -> None:
    hard = resource.prlimit(server.worker, resource.RLIMIT_NOFILE)[1]

    assert resource.prlimit(server.worker, resource.RLIMIT_NOFILE)[0] == hard


def test_there_is_one_worker_and_no_signal_adds_another(server: Launched) -> None:
    worker = server.worker

    for number in (signal.SIGTTIN, signal.SIGUSR2, signal.SIGTTOU):
        server.process.send_signal(number)
    # The master handles its signals in turn: time has to pass for one to do harm.
    time.sleep(1.5)

    assert server.worker == worker
    assert requests.get(f"{server.url}/livez", timeout=LIMIT_S).status_code == 200


@pytest.mark.parametrize("request_", [b"NONSENSE\r\n\r\n", b"GET /livez HTTP/1.1\r\nbad header\r\n\r\n"])
def test_what_is_no_http_is_answered_with_a_problem_and_no_page(server: Launched, request_: bytes) -> None:
    answer = raw(server, request_)

    assert b" 400 " in answer.splitlines()[0]
    assert b"application/problem+json" in answer
    assert b"<html" not in answer


def test_a_long_body_without_a_length_is_refused(server: Launched) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"input": "'
        for _ in range(17):
            yield b"a" * 65536
        yield b'"}'

    headers = {**bearer(server.token), "Content-Type": "application/json"}
    answer = requests.post(f"{server.url}/v1/runs", data=pieces(), headers=headers, timeout=LIMIT_S)

    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_a_configured_key_prints_the_address_alone(launch: Launch) -> None:
    server = launch(AUTH_JWT_SECRET=SECRET, LLM_BASE_URL="http://127.0.0.1:9").wait_ready()

    assert server.lines == [f"Chat page: {server.url}/"]
    assert len(server.children) == 1


def test_the_token_command_signs_a_token_that_the_server_takes(launch: Launch) -> None:
    command = launch("token", "--sub", "alice", "--scope", "runs:read", AUTH_JWT_SECRET=SECRET)
    assert command.wait_end() == 0
    server = launch(AUTH_JWT_SECRET=SECRET, LLM_BASE_URL="http://127.0.0.1:9").wait_ready()

    headers = bearer(command.lines[0])

    assert requests.get(f"{server.url}/v1/runs", headers=headers, timeout=LIMIT_S).status_code == 200
    answer = requests.post(f"{server.url}/v1/runs", json={"input": "hi"}, headers=headers, timeout=LIMIT_S)
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")


def test_the_development_secret_is_the_same_for_the_command_and_the_server(launch: Launch, tmp_path: Path) -> None:
    first, second = launch("token", "--sub", "alice"), launch("token", "--sub", "bob")
    assert (first.wait_end(), second.wait_end()) == (0, 0)
    server = launch(LLM_BASE_URL="http://127.0.0.1:9").wait_ready()

    for command in (first, second):
        answer = requests.get(f"{server.url}/v1/runs", headers=bearer(command.lines[0]), timeout=LIMIT_S)
        assert answer.status_code == 200
    assert (tmp_path / "data" / "jwt_secret").stat().st_mode & 0o777 == 0o600


# -- a start that is refused -----------------------------------------------------------------


def test_a_wrong_setting_is_one_line_and_exit_code_two(launch: Launch) -> None:
    assert "PORT='eighty' is wrong" in refusal(launch(PORT="eighty"))


def test_a_token_is_not_signed_with_somebody_elses_key(launch: Launch) -> None:
    line = refusal(launch("token", "--sub", "alice", AUTH_JWKS_URL="http://127.0.0.1:9/jwks"))

    assert "AUTH_JWT_SECRET" in line


def test_a_token_with_a_scope_that_no_route_knows_is_not_made(launch: Launch) -> None:
    line = refusal(launch("token", "--sub", "alice", "--scope", "runs:read runs:creat", AUTH_JWT_SECRET=SECRET))

    assert "'runs:creat'; there are runs:create, runs:read, runs:stop" in line


def test_a_port_that_is_taken_is_one_line(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert f"PORT={port} is in use" in refusal(launch(PORT=port))


def test_an_address_that_is_not_ours_is_one_line(launch: Launch) -> None:
    assert "HOST='192.0.2.1'" in refusal(launch(HOST="192.0.2.1", AUTH_JWT_SECRET=SECRET))


def test_a_second_server_on_the_same_data_dir_is_refused_and_the_first_goes_on(launch: Launch) -> None:
    first = launch(LLM_BASE_URL="http://127.0.0.1:9").wait_ready()

    line = refusal(launch(LLM_BASE_URL="http://127.0.0.1:9"))

    assert "DATA_DIR=" in line
    assert f"(pid {first.process.pid})" in line
    assert requests.get(f"{first.url}/livez", timeout=LIMIT_S).status_code == 200


BROKEN_APP = """
import sys, types
broken = types.ModuleType("api.app")
def create_app(settings):
    raise RuntimeError("on purpose")
broken.create_app = create_app
sys.modules["api.app"] = broken
from api.command import main
sys.exit(main([]))
"""


def test_an_app_that_cannot_start_ends_the_server_with_everything(launch: Launch) -> None:
    server = launch(program=BROKEN_APP)

    assert server.wait_end() not in {0, 2}
    assert server.lines == []
    assert any("on purpose" in line for line in server.errors)
