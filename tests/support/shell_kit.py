"""What tests of the shell share: a call on a thread of its own, and a mark by which its processes are found."""

from __future__ import annotations

import itertools
import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.cancellation import Cause, CauseWord, Level, Scope
from core.tool.shell import Shell
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import PATIENCE_S
from tests.support.servers import wait_until

STOP = Cause(CauseWord.USER, "the user pressed stop")
_numbers = itertools.count(1)


class Mark:
    """A number that no other process on this machine has in its arguments or its environment.

    Put it into the command as what ``sleep`` sleeps: ``sleep {mark}`` lasts for years and is found for certain.
    """

    def __init__(self) -> None:
        self.text = f"77{os.getpid():08d}{next(_numbers):04d}"

    def __str__(self) -> str:
        return self.text

    def environment(self) -> dict[str, str]:
        """Marks also what is not called ``sleep``."""
        return {"PATH": os.environ["PATH"], "TEST_MARK": self.text}

    def alive(self) -> list[int]:
        """The pids of all processes with the mark, supervisors too; a zombie is dead."""
        mark = self.text.encode()
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        return [pid for pid in pids if mark in _words(pid) and not is_zombie(pid)]

    def wait_none_alive(self) -> None:
        """Until all have ended; fails after a generous time."""
        deadline = time.monotonic() + PATIENCE_S
        while found := self.alive():
            for pid in found:
                assert _wait_end(pid, deadline), f"still alive: {[_read(pid, 'cmdline') for pid in self.alive()]}"


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _words(pid: int) -> bytes:
    """Arguments and environment. In the middle of an exec a process shows neither, or one: then look again."""
    while True:
        before, words, after = _stack(pid), _read(pid, "cmdline") + _read(pid, "environ"), _stack(pid)
        if before == after != b"0" or is_zombie(pid) or not os.path.exists(f"/proc/{pid}/exe"):
            return words  # no program that we may look at: the kernel, or another user
        os.sched_yield()


def _stack(pid: int) -> bytes:
    """Where the stack of its present program starts; 0 until the program has its arguments and environment."""
    return (_read(pid, "stat").rpartition(b") ")[2].split()[25:26] or [b"0"])[0]


def is_zombie(pid: int) -> bool:
    """Dead, or gone altogether."""
    return _read(pid, "stat").rpartition(b") ")[2][:1] in (b"Z", b"X", b"")


def children() -> set[int]:
    """The direct children of this process, zombies too."""
    own = str(os.getpid()).encode()
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return {pid for pid in pids if _read(pid, "stat").rpartition(b") ")[2].split()[1:2] == [own]}


def descriptors() -> dict[int, str]:
    """What this process has open: of each number the file behind it."""
    opened = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself, or another thread has closed it
            opened[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return opened


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """What is started or opened inside must be gone at the end; what was there before may have ended meanwhile."""
    files, processes = descriptors(), children()
    yield
    assert children() <= processes
    # In time: a thread of an earlier test may open and close something at this moment.
    wait_until(lambda: descriptors().items() <= files.items(), "all that was opened is closed")


def _wait_end(pid: int, deadline: float) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
    finally:
        os.close(pidfd)


@dataclass(frozen=True)
class Answer:
    """A tool result, taken apart."""

    result: ToolResult
    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


def answer_of(result: ToolResult) -> Answer:
    """The fields of a result's JSON."""
    return Answer(result, json.loads(result.content))


class ShellCall:
    """One call, running on a thread."""

    def __init__(self, shell: Shell, command: str, **arguments: Any) -> None:
        self.scope = Scope.root().open(Level.TURN, "turn").open(Level.CALL, "shell")
        self.run = ToolRun(self.scope, "goal", "shell", self._emit)
        self.pieces: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        self.stopped_at = self.took_s = 0.0
        self._answer: Answer | None = None
        self._changed = threading.Condition()
        self._shell = shell
        self._arguments = {"command": command, **arguments}
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> ShellCall:
        """Begin."""
        self._thread.start()
        return self

    def _emit(self, stream: str, text: str) -> None:
        with self._changed:
            self.pieces.append((stream, text))
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            self._answer = answer_of(self._shell.run(self._arguments, self.run))
        except BaseException as error:
            self.error = error
        self.took_s = time.monotonic() - self.stopped_at
        with self._changed:
            self._changed.notify_all()

    def said(self, stream: str = "stdout") -> str:
        """All that was handed on so far."""
        return "".join(text for name, text in list(self.pieces) if name == stream)

    def wait_said(self, text: str) -> ShellCall:
        """Until the command has printed it."""
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.said() or not self._thread.is_alive(), PATIENCE_S)
        assert text in self.said(), f"it ended without {text!r}: {self._answer} {self.error}"
        return self

    def stop(self, cause: Cause = STOP) -> Answer:
        """Stop it, and wait for what it returns."""
        self.request_stop(cause)
        return self.answer()

    def request_stop(self, cause: Cause = STOP) -> None:
        """Stop it."""
        self.stopped_at = time.monotonic()
        self.scope.cancel(cause)

    def wait_end(self) -> None:
        """Until the call has returned or raised."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the call does not end"

    def answer(self) -> Answer:
        """What it returned; raises what it raised."""
        self.wait_end()
        if self.error is not None:
            raise self.error
        assert self._answer is not None
        return self._answer

    def receipt(self) -> tuple[Any, Any]:
        """``(outcome, how)``."""
        item = self.run.item(self.stopped_at)
        return item["outcome"], item["how"]


class ShellBench:
    """Makes calls in one folder, all with one mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = Mark()

    def shell(self, environment: Mapping[str, str] | None = None, **options: Any) -> Shell:
        """A shell whose commands carry the mark."""
        return Shell(self.folder, {**self.mark.environment(), **(environment or {})}, **options)

    def start(self, command: str, shell: Shell | None = None, **arguments: Any) -> ShellCall:
        """A running call."""
        return ShellCall(shell or self.shell(), command, **arguments).start()

    def run(self, command: str, shell: Shell | None = None, **arguments: Any) -> Answer:
        """A whole call; nothing of it may be left."""
        answer = self.start(command, shell, **arguments).answer()
        assert self.mark.alive() == []
        return answer


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run ``work`` with 0, 1, 2, … at once; the first error is raised."""
    errors: list[BaseException] = []

    def attempt(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
