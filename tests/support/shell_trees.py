"""Process trees of random shape, as a shell command can make them, and a witness that does not go by their marks."""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.api_client import PATIENCE_S

#: How a process is started by its parent. ``FILE`` stands for what it runs.
STARTS: Final = {
    "background job": "sh FILE &",
    "new session": "setsid sh FILE &",
    "double fork": "(sh FILE &)",
    "daemon": "(setsid sh -c '(setsid sh FILE &)' &)",
    "nohup": "nohup sh FILE >/dev/null 2>&1 &",
    "empty environment": "env -i sh FILE &",
    "empty environment and new session": "(env -i setsid sh FILE &)",
    "pipeline": "sh FILE | cat &",
}
#: What a process does to itself before it starts others.
WAYS: Final = {
    "plain": ":",
    "deaf to TERM": "trap '' TERM HUP",
    "gives birth at TERM": "trap 'setsid sleep 600 & exit' TERM",
    "goes elsewhere": "cd /",
    # For who reads /proc: a line that says it is a zombie of init's.
    "takes another name": r"printf ') Z 1 1 \n1 (' > /proc/self/comm",
}
#: What it does at last.
ENDS: Final = {
    "sleeps": "sleep 600; :",
    "waits": "wait; sleep 600",
    "becomes another program": "exec sleep 600",
    "suspends itself": "kill -STOP $$; sleep 600",
    "gives up what it has inherited": "exec 9>&- >/dev/null 2>&1; exec sleep 600",
    "leaves": "exit 0",
    "storm of fifty": "i=0; while [ $i -lt 50 ]; do sleep 600 & i=$((i+1)); done; wait",
    "chain of fifty": "deeper() { if [ $1 -gt 0 ]; then (deeper $(($1-1)); :); else sleep 600; fi; }; deeper 50; :",
}
_LARGE = ("storm of fifty", "chain of fifty")
_MOST = 12
#: Its pid and when it began (clock ticks since the machine's start), told by the process itself.
_NOTE = "read -r p a b c d e f g h i j k l m n o q r s t u began rest < /proc/self/stat; echo $p $began >&9"


@dataclass(frozen=True)
class Node:
    """One process of a tree."""

    start: str
    way: str
    end: str
    children: tuple[Node, ...] = ()

    def __iter__(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child

    def shown(self, depth: int = 0) -> str:
        """The tree for a message: a line a process."""
        line = f"{'  ' * depth}{self.start}, {self.way}, {self.end}"
        return "\n".join([line, *(child.shown(depth + 1) for child in self.children)])


def random_tree(draw: random.Random, can_leave: bool = True) -> Node:
    """At most twelve processes and one storm or chain of fifty. ``can_leave``: the shell itself may be over at once."""
    left, larges = draw.randint(0, _MOST - 1), [draw.choice(_LARGE)] if draw.random() < 0.4 else []
    small = [name for name in ENDS if name not in _LARGE]

    def grow(depth: int) -> Node:
        nonlocal left
        children = []
        for _ in range(draw.randint(0 if depth else 1, 3)):
            if left > 0 and depth < 4:
                left -= 1
                children.append(grow(depth + 1))
        start, way = draw.choice(list(STARTS)) if depth else "the shell", draw.choice(list(WAYS))
        ends = small if depth or can_leave else [name for name in small if name != "leaves"]
        end = larges.pop() if larges and draw.random() < 0.3 else draw.choice(ends)
        return Node(start, way, end, tuple(children))

    return grow(0)


class Witness:
    """What a tree's processes cannot deny: each has inherited a pipe, and has told its pid through it.

    As long as one of them lives, reading from the pipe finds no end. The kernel says so, whatever the process has done
    to its environment, session, parent or name. One that has given up the pipe is known by its pid.
    """

    def __init__(self, folder: Path, tree: Node) -> None:
        folder.mkdir()
        self.tree = tree
        self._path = folder / "pipe"
        os.mkfifo(self._path)
        self._pipe = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        self._text = b""
        for number, node in enumerate(tree):
            (folder / f"{number}.sh").write_text(_script(node, folder, number))
        #: For the shell.
        self.command = f"exec 9>{self._path}; . {folder}/0.sh"

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._pipe)

    def notes(self) -> list[tuple[int, int]]:
        """(pid, when it began) of each process that has told of itself so far."""
        self._read()
        return [(int(pid), int(began)) for pid, _, began in (line.partition(" ") for line in self._lines())]

    def wait_notes(self, count: int) -> bool:
        """Until so many have told of themselves; False if all of the tree that there was ended first."""
        deadline = time.monotonic() + PATIENCE_S
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        while len(self.notes()) < count:
            ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
            assert ready, f"only {len(self.notes())} of {count} processes began:\n{self.tree.shown()}"
            if not ready[0][1] & select.POLLIN:
                return len(self.notes()) >= count
        return True

    def survivors(self) -> list[str]:
        """Who lives now; empty: nobody. A zombie is dead."""
        is_held = not self._read()
        alive = {pid for pid, began in self.notes() if _lives(pid, began)} | (self._holders() if is_held else set())
        return [_line(pid) for pid in sorted(alive)] or ["somebody holds the pipe"] * is_held

    def wait_nobody(self, seconds: float) -> None:
        """Until all have died; fails after that time with those that live."""
        deadline = time.monotonic() + seconds
        while found := self.survivors():
            assert time.monotonic() < deadline, f"still alive: {found}\n{self.tree.shown()}"
            time.sleep(0.01)  # between two looks: those that gave up the pipe cannot be waited for

    def _lines(self) -> list[str]:
        return self._text.decode().split("\n")[:-1]

    def _read(self) -> bool:
        """Take in what was told; True if the pipe is at its end: nobody holds it."""
        while True:
            try:
                data = os.read(self._pipe, 65536)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._text += data

    def _holders(self) -> set[int]:
        """Who has the pipe open, for a message; this process has it too."""
        own = str(self._path)
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        return {pid for pid in pids if pid != os.getpid() and own in _open_files(pid)}


def _script(node: Node, folder: Path, number: int) -> str:
    """What one process runs. Its children are numbered behind it, as the tree is walked."""
    lines = ["PATH=/usr/local/bin:/usr/bin:/bin", _NOTE, WAYS[node.way]]
    child_number = number + 1
    for child in node.children:
        lines.append(STARTS[child.start].replace("FILE", f"{folder}/{child_number}.sh"))
        child_number += sum(1 for _ in child)
    return "\n".join([*lines, ENDS[node.end], ""])


def _lives(pid: int, began: int) -> bool:
    """Whether it is there, no zombie, and still the process that began then."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return False
    return bool(fields) and fields[0] not in (b"Z", b"X") and int(fields[19]) == began


def _open_files(pid: int) -> set[str]:
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found.add(os.readlink(link))
    except OSError:  # it ended meanwhile, or is another user's
        pass
    return found


def _line(pid: int) -> str:
    try:
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
    except OSError:
        return f"{pid}: gone by now"
