"""Servers for tests: a real one in a process of its own, and one inside the test's process, whose gates can be set."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from werkzeug.serving import make_server

from api.app import Runtime, create_app
from core import gates
from core.settings import Settings
from tests.support.api_client import PATIENCE_S, SECRET, Api, make_token

REMOTE_TOKEN = "the-remote-session-api-token"

#: Ends a server and starts the next one.
Restart = Callable[[], None]


class ServerProcess:
    """``python -m api`` as a user starts it, on a free port."""

    #: What Python is started with.
    arguments = ("-m", "api")

    def __init__(self, data_dir: Path, llm_url: str, **environment: str) -> None:
        self.data_dir = data_dir
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LLM_", "AUTH_"))},
            "HOST": "127.0.0.1",
            "PORT": "0",
            "DATA_DIR": str(data_dir),
            "LLM_BASE_URL": llm_url,
            "AUTH_JWT_SECRET": SECRET,
            "REMOTE_SESSION_API_TOKEN": REMOTE_TOKEN,
            **environment,
        }
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> ServerProcess:
        """Start, and wait until it serves."""
        self.process = subprocess.Popen(
            [sys.executable, *self.arguments], env=self.environment, cwd=self.data_dir, stdout=subprocess.PIPE, text=True
        )
        self.url = self._wait_ready(self.process)
        return self

    def _wait_ready(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if ready else ""
        found = re.search(r"http://[0-9.]+:\d+", line)
        assert found, f"the server did not start: {line!r}"
        return found.group()

    def api(self, sub: str = "alice", **claims: Any) -> Api:
        """A user's view."""
        return Api(self.url, make_token(sub, **claims))

    def kill(self) -> None:
        """kill -9 of the whole server: master and worker."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.terminate()


class LocalServer:
    """The same app in this process, over real sockets, so that a test can hold its threads at the gates."""

    def __init__(self, data_dir: Path, llm_url: str, **settings: Any) -> None:
        fields = {
            "data_dir": data_dir, "llm_base_url": llm_url, "auth_jwt_secret": SECRET,
            "remote_session_api_token": REMOTE_TOKEN, **settings,
        }  # fmt: skip
        self.app = create_app(Settings(_env_file=None, **fields))
        self.runtime: Runtime = self.app.extensions["runtime"]
        self.main = self.runtime.main
        self._http = make_server("127.0.0.1", 0, self.app, threaded=True)
        self.url = f"http://127.0.0.1:{self._http.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="http", daemon=True)
        self._thread.start()

    def api(self, sub: str = "alice", **claims: Any) -> Api:
        """A user's view."""
        return Api(self.url, make_token(sub, **claims))

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        gates.installed.clear()
        self.runtime.close(PATIENCE_S)
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(PATIENCE_S)


class Gate:
    """Holds the first thread that reaches a pause point until the test lets it go."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._reached = threading.Event()
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._is_used = False

    def __call__(self) -> None:
        with self._lock:
            if self._is_used:
                return
            self._is_used = True
        self._reached.set()
        assert self._open.wait(PATIENCE_S), f"nobody opened the gate {self.name}"

    def wait_reached(self) -> None:
        """Until a thread stands at the gate."""
        assert self._reached.wait(PATIENCE_S), f"nobody came to {self.name}"

    def open(self) -> None:
        """Let it go."""
        self._open.set()


@contextmanager
def gate(name: str) -> Iterator[Gate]:
    """A gate at the pause point ``name``; open again afterwards, whatever happens."""
    held = Gate(name)
    gates.installed[name] = held
    try:
        yield held
    finally:
        gates.installed.pop(name, None)
        held.open()


def wait_until(holds: Any, what: str) -> None:
    """For what no event tells of, such as a thread's end: ask again until it holds. Bounded."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)  # between two looks at the operating system; nothing wakes us for these
