"""``python -m api``: what a start prints and refuses, and that nothing is left when it ends, however it ends."""

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

import core.settings
from api.gunicorn_server import DRAIN_S
from tests.support.servers import wait_until

LIMIT_S = 30
SECRET = "a-configured-secret-for-the-tests-of-the-launcher-0123456789"
SOURCES = Path(core.settings.__file__).absolute().parents[1]


class Launched:
    """A started server: its output as it comes, its processes, its address and its token."""

    def __init__(self, folder: Path, *arguments: str, program: str | None = None, **variables: str) -> None:
        private = {name.upper() for name in core.settings.Settings.model_fields}
        inherited = {name: value for name, value in os.environ.items() if name not in private}
        start = ["-m", "api", *arguments] if program is None else ["-c", program]
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, *start],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**inherited, "PYTHONPATH": str(SOURCES), "PORT": "0", **variables},
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._printed = threading.Event()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterator[str], into: list[str]) -> None:
        for line in stream:
            into.append(line.rstrip("\n"))
            if into is self.lines:
                self._printed.set()
        self._printed.set()

    def wait_ready(self) -> "Launched":
        assert self._printed.wait(LIMIT_S)
        assert len(self.lines) == 1, self.errors
        return self

    @property
    def url(self) -> str:
        found = re.search(r"Chat page: (http://[^/]+)/", self.lines[0])
        assert found is not None
        return found.group(1)

    @property
    def token(self) -> str:
        found = re.search(r"#token=(\S+)", self.lines[0])
        assert found is not None
        return found.group(1)

    @property
    def stand_in(self) -> str:
        found = re.search(r"\(stand-in model: (http://\S+)\)", self.lines[0])
        assert found is not None
        return found.group(1)

    @property
    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @property
    def worker(self) -> int:
        found = [pid for pid in self.children if b"de2generator" not in command_of(pid)]
        assert len(found) == 1
        return found[0]

    def wait_end(self) -> int:
        """The exit code, after which all of the output is there."""
        code = self.process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join(LIMIT_S)
            assert not reader.is_alive(), "something still holds the server's output"
        return code

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait_end()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + LIMIT_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < until, "a process of the server lives on"
        # Not our children, so that there is nothing to wait on.
        time.sleep(0.01)


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[Launched] = []

    def start(*arguments: str, program: str | None = None, **variables: str) -> Launched:
        started.append(Launched(tmp_path, *arguments, program=program, **variables))
        return started[-1]

    yield start
    for server in started:
        server.close()


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


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


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
from api.__main__ import main
sys.exit(main([]))
"""


def test_an_app_that_cannot_start_ends_the_server_with_everything(launch: Launch) -> None:
    server = launch(program=BROKEN_APP)

    assert server.wait_end() not in {0, 2}
    assert server.lines == []
    assert any("on purpose" in line for line in server.errors)


# -- an end ----------------------------------------------------------------------------------


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
            return False

        wait_until(is_refused, "new connections are refused")
        assert server.process.poll() is None, "it was the end of the server that refused"
    assert server.wait_end() == 0
