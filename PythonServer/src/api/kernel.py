"""What this process asks of the Linux kernel about itself, by ``prctl(2)``."""

import ctypes
import logging
import signal

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def die_with_parent() -> None:
    """Have the kernel end this process with SIGKILL when its parent ends. One that has ended before is not noticed."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hide_from_same_user() -> None:
    """Close this process's environment, memory and descriptors to other processes of its user; root still sees them.

    They are in ``/proc``, where a command that an agent runs could read the keys. Forks inherit it, until they exec.
    The price: no core dumps, and debuggers need root.
    """
    if _prctl(_PR_SET_DUMPABLE, 0):
        log.warning("the environment of this process cannot be hidden from its own user")


def _prctl(option: int, value: int) -> int:
    """0, or -1 if the kernel refuses."""
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))
