"""A real server in a process of its own, and Debian's chromium in front of it."""

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
CHROMIUM_ARGUMENTS = [
    "--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
LIMIT_S = 60.0
READY = re.compile(r"Chat page: ((http://127\.0\.0\.1:(\d+)/)#token=(\S+))")

expect.set_options(timeout=15_000)


class ChatServer:
    """``python -m api`` with its stand-in model. ``kill`` and ``start`` again keep port and data."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[str] | None = None
        self._port = "0"
        #: The page; ``address`` has a token in its fragment.
        self.url = self.address = self.token = ""

    def start(self) -> None:
        """Start it and wait until it serves."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLM", "AUTH_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "api"],
            cwd=self._data_dir,  # no .env there
            env=kept | self._settings(),
            stdout=subprocess.PIPE,
            text=True,
        )
        found = READY.search(self._first_line(self._process))
        assert found is not None, "the server did not say where its page is"
        self.address, self.url, self._port, self.token = found.groups()

    def _settings(self) -> dict[str, str]:
        return {
            "DATA_DIR": str(self._data_dir), "HOST": "127.0.0.1", "PORT": self._port,
            "TOOLS_ALLOWED": "ask_user,delegate,shell",
        }  # fmt: skip

    def _first_line(self, process: "subprocess.Popen[str]") -> str:
        output = process.stdout
        assert output is not None
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
        return lines.get(timeout=LIMIT_S)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of the API's answer to the user of the page."""
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = requests.request(method, f"{self.url}{path}", headers=headers, json=body, timeout=LIMIT_S)
        assert answer.ok, answer.text
        return answer.json()

    def kill(self) -> None:
        """As a crash would end it."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in [str(self._process.pid), *children]:
            os.kill(int(pid), 9)
        self._reap()

    def stop(self) -> None:
        """As an operator would."""
        if self._process is not None:
            self._process.terminate()
            self._reap()

    def _reap(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        try:
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    """One server for the tests that leave it alive."""
    running = ChatServer(tmp_path_factory.mktemp("chat"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ChatServer]:
    """A server that the test may kill."""
    running = ChatServer(tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    if not Path(CHROMIUM).exists():
        pytest.skip("chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
        yield launched
        launched.close()


NewContext = Callable[..., BrowserContext]


@pytest.fixture
def new_context(browser: Browser) -> Iterator[NewContext]:
    """Another browser profile. At the test's end no page of it may have logged an error, such as a CSP violation."""
    opened: list[BrowserContext] = []
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # A status of 400 or more and a lost connection are what some tests are about.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            errors.append(message.text)

    def open_context(**options: Any) -> BrowserContext:
        context = browser.new_context(**options)
        context.on("console", note)
        context.on("weberror", lambda error: errors.append(str(error.error)))
        opened.append(context)
        return context

    yield open_context
    for context in opened:
        context.close()
    assert errors == []


@pytest.fixture
def page(new_context: NewContext, server: ChatServer) -> Page:
    """The chat page, with a new chat."""
    opened = new_context().new_page()
    opened.goto(server.address)
    return opened
