"""From the stop to the death of what tools run: one command, trees, deserters, and a batch of five."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from benchmarks import floors
from benchmarks.deaths import Deaths, bare_kill
from benchmarks.lean_client import LeanClient
from benchmarks.table import Table
from tests.support.api_client import Run
from tests.support.model_server import ModelServer, script
from tests.support.plans import start_plan
from tests.support.servers import ServerProcess, wait_until
from tests.support.shell_trees import Node, Witness

_numbers = itertools.count(1)
BATCH: Final = 5
LIMITS: Final = (5, 20)


def _sleeping(start: str, *children: Node) -> Node:
    return Node(start, "plain", "becomes another program", children)


_JOB: Final = _sleeping("background job")
TREES: Final = {
    "one sleep": _sleeping("the shell"),
    "a tree of 20": _sleeping("the shell", *[_sleeping("background job", *[_JOB] * 5)] * 3, _JOB),
    "a deserter of session and parent": _sleeping("the shell", _sleeping("daemon")),
}


class Stops:
    """A server with the shell, and what one stop of it costs."""

    def __init__(self, server: ServerProcess, models: ModelServer, folder: Path) -> None:
        self._api, self._models, self._folder = server.api(), models, folder
        self._stopper, self._idle = LeanClient(server.url, "alice"), LeanClient(server.url, "idle")

    def stop_tree(self, tree: Node) -> tuple[float, int]:
        """Milliseconds from the POST to the last death of a tree, and how many survived the stop."""
        with closing(Witness(self._folder / f"tree{next(_numbers)}", tree)) as witness:
            tool = {"name": "shell", "arguments": {"command": witness.command}}
            run = start_plan(self._api, {"id": "tool", "tool": tool})
            assert witness.wait_notes(sum(1 for _ in tree))
            took = self._stop(run, [pid for pid, _ in witness.notes()])
            return took, len(witness.survivors())

    def stop_batch(self) -> tuple[float, int]:
        """Milliseconds from the POST to the last death of five tools of one reply, and their effects after that."""
        number = next(_numbers)
        pids, ticks, key = self._folder / f"pids{number}", self._folder / f"ticks{number}", f"batch{number}"
        command = f"echo $$ >> {pids}; while echo tick >> {ticks}; do sleep 0.02; done"
        arguments = [{"command": command}] * BATCH
        line = script("toolcall", name=["shell"] * BATCH, arguments=[_json(each) for each in arguments], key=key)
        run = self._api.start(line)
        wait_until(lambda: pids.exists() and pids.read_text().count("\n") == BATCH, "all five run")
        took = self._stop(run, map(int, pids.read_text().split()))
        written = ticks.stat().st_size
        time.sleep(0.1)  # so long anything that lives on has to show itself
        requests = len(self._models.calls(key=key)) - 1
        return took, ticks.stat().st_size - written + requests

    def _stop(self, run: Run, pids: Iterator[int] | list[int]) -> float:
        time.sleep(0.05)  # until all of it is asleep; no event tells of that
        deaths = Deaths(pids)
        start = time.perf_counter()
        answer, _ = self._stopper.post(f"{run.path}/cancel")
        assert answer["stopped"] is True
        took = (deaths.wait_all() - start) * 1000
        run.wait_parked()
        run.terminate()
        return took

    def floor(self, count: int, repeats: int) -> float:
        """Milliseconds: TERM to so many plain children until they are dead, and a POST that finds nothing to do."""
        no_op = statistics.median(floors.no_op_post(self._idle))
        kill = statistics.median(bare_kill(count) for _ in range(repeats))
        print(f"  no-op POST {no_op:.2f} ms, kill of {count} plain children {kill:.2f} ms")
        return no_op + kill


def _json(value: dict[str, str]) -> str:
    return script("x", value=value).partition("value=")[2]


@contextmanager
def _server() -> Iterator[Stops]:
    with ModelServer() as models, tempfile.TemporaryDirectory() as folder:
        with ServerProcess(Path(folder), models.url, TOOLS_ALLOWED="shell", LOG_LEVEL="error") as server:
            yield Stops(server, models, Path(folder))


def run(table: Table, repeats: int) -> None:
    """Each kind on the same server. The budgets of what must not be there are 0."""
    with _server() as stops:
        stops.stop_tree(TREES["one sleep"])
        survivors: list[float] = []
        for name, tree in TREES.items():
            floor = stops.floor(sum(1 for _ in tree), repeats)
            found = [stops.stop_tree(tree) for _ in range(repeats)]
            survivors += [left for _, left in found]
            table.within(f"stop -> shell dead: {name}", "ms", [took for took, _ in found], floor, LIMITS)
        table.within("the same: survivors", "", survivors, 0, (0, 0))
        floor = stops.floor(BATCH, repeats)
        found = [stops.stop_batch() for _ in range(repeats)]
        table.within(f"stop -> {BATCH} tools of one reply all dead", "ms", [took for took, _ in found], floor, LIMITS)
        table.within("the same: effects after that", "", [left for _, left in found], 0, (0, 0))
