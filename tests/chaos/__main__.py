"""``python -m tests.chaos``: see ``make chaos``."""

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.kills import kill_again_and_again
from tests.chaos.witness import Ledger


def main() -> int:
    """Run it and tell; 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="of an earlier run, to try the same again")
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pythonserver-chaos-") as folder:
        ledger = kill_again_and_again(given.kills, given.seed, Path(folder), _say)
    report(ledger)
    _say(f"{time.monotonic() - began:.0f} s, seed {given.seed}")
    return 1 if ledger.violations else 0


def report(ledger: Ledger) -> None:
    """The counts."""
    for name, number in sorted(ledger.counts.items()):
        _say(f"{number:8} {name}")
    _say(f"{len(ledger.violations):8} violations")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
