"""``python -m benchmarks``: every figure beside its floor from the same run. ``--quick`` for a first look."""

import argparse

from benchmarks import parked, scheduling, stopping
from benchmarks.table import Table


def main() -> None:
    """Run all, or those named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("parts", nargs="*", default=[], help="scheduling, stopping, parked; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    given = parser.parse_args()
    parts = given.parts or ["scheduling", "stopping", "parked"]
    table = Table()
    if "scheduling" in parts:
        scheduling.run(table, 3 if given.quick else 7)
    if "stopping" in parts:
        stopping.run(table, 2 if given.quick else 5)
    if "parked" in parts:
        parked.run(table, 300 if given.quick else 2000)
    print("\nmissed their budget: " + (", ".join(table.missed) or "none"))


if __name__ == "__main__":
    main()
