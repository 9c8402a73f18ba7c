"""Named pause points, so that a test can force the order of a race instead of hoping for it.

In production nothing is installed and :func:`pause_at` is one dictionary look-up. A test installs a
callable under a name; the thread that reaches the point runs it, usually to wait for another thread.
"""

from collections.abc import Callable
from typing import Final

#: Name of the point -> what to run there. Only tests write to it.
installed: Final[dict[str, Callable[[], None]]] = {}


def pause_at(name: str) -> None:
    """Run what a test installed at this point, if anything."""
    hook = installed.get(name)
    if hook is not None:
        hook()
