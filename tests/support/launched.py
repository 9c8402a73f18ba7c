"""``python -m api`` as a process of its own: what it prints, its processes, and that they end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import core.settings

LIMIT_S = 30
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
        """Until it has printed its one line."""
        assert self._printed.wait(LIMIT_S)
        assert len(self.lines) == 1, self.errors
        return self

    @property
    def url(self) -> str:
        """The address in the line."""
        found = re.search(r"Chat page: (http://[^/]+)/", self.lines[0])
        assert found is not None
        return found.group(1)

    @property
    def token(self) -> str:
        """The token in the line."""
        found = re.search(r"#token=(\S+)", self.lines[0])
        assert found is not None
        return found.group(1)

    @property
    def stand_in(self) -> str:
        """The address of the stand-in model."""
        found = re.search(r"\(stand-in model: (http://\S+)\)", self.lines[0])
        assert found is not None
        return found.group(1)

    @property
    def children(self) -> list[int]:
        """Ids of the processes that the server started."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @property
    def worker(self) -> int:
        """Id of the one process that answers requests."""
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
        """Kill the server with all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait_end()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def command_of(pid: int) -> bytes:
    """The command line; empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_until_gone(pids: list[int]) -> None:
    """Until none of them runs; bounded."""
    until = time.monotonic() + LIMIT_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < until, "a process of the server lives on"
        # Not our children, so that there is nothing to wait on.
        time.sleep(0.01)


def bearer(token: str) -> dict[str, str]:
    """The header that carries the token."""
    return {"Authorization": f"Bearer {token}"}


Launch = Callable[..., Launched]
