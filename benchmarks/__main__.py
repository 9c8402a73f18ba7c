"""``python -m benchmarks``: every figure beside its floor from the same run. ``--quick`` for a first look."""

import argparse
from collections.abc import Callable
from typing import Final

from benchmarks import (
    call_phases,
    event_log,
    parked,
    readers,
    restarting,
    scheduling,
    stopping,
    talking,
    tool_stops,
    waits,
)
from benchmarks.table import Table

#: Name -> what it does; True for a first look.
PARTS: Final[dict[str, Callable[[Table, bool], None]]] = {
    "scheduling": lambda table, is_quick: scheduling.run(table, 3 if is_quick else 7),
    "stopping": lambda table, is_quick: stopping.run(table, 2 if is_quick else 5),
    "phases": lambda table, is_quick: call_phases.run(table, 6 if is_quick else 50),
    "waits": lambda table, is_quick: waits.run(table, 6 if is_quick else 50),
    "tools": lambda table, is_quick: tool_stops.run(table, 6 if is_quick else 50),
    "talking": lambda table, is_quick: talking.run(table, 6 if is_quick else 50),
    "parked": lambda table, is_quick: parked.run(table, 300 if is_quick else 2000),
    "readers": lambda table, is_quick: readers.run(table, *((6, 2) if is_quick else (30, 10))),
    "events": lambda table, is_quick: event_log.write(table, *((20_000, 3) if is_quick else (100_000, 7))),
    "replay": lambda table, is_quick: event_log.replay(table, 20_000, 3 if is_quick else 10),
    "restart": lambda table, is_quick: restarting.run(table, *((1_000, 2) if is_quick else (10_000, 5))),
}


def main() -> None:
    """Run all, or those named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    table = Table()
    for name, run in PARTS.items():
        if name in given.parts or not given.parts:
            run(table, given.quick)
    print("\nmissed their budget: " + (", ".join(table.missed) or "none"))


if __name__ == "__main__":
    main()
