"""A few kills of ``make chaos``, so that it keeps working, and finds at once what is broken altogether."""

from pathlib import Path

import pytest

from tests.chaos.kills import kill_again_and_again

KILLS = 5


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", ["a", "b"])
def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed_under_load(tmp_path: Path, seed: str) -> None:
    ledger = kill_again_and_again(KILLS, seed, tmp_path, print)
    assert ledger.violations == []
    # Else it was no load, and nothing was shown.
    for name in ("runs", "messages", "stops", "terminates", "texts seen", "turns lost", "tool calls", "next messages"):
        assert ledger.counts[name] > 0, (name, ledger.counts)
