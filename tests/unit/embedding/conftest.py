"""An executor without a server, and a controller for it."""

from collections.abc import Iterator

import pytest

from core.interrupt import InterruptController
from tests.support.embedding_kit import Bench, open_bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Checked at its end."""
    with open_bench() as bench:
        yield bench


@pytest.fixture
def controller() -> InterruptController:
    """Nothing is requested of it yet."""
    return InterruptController()
