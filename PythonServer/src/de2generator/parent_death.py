"""End with the parent process, also when that is killed."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int = 0) -> None:
    """Get SIGKILL from the kernel when the parent ends (Linux).

    The kernel means the *thread* that started this process: start it from one that lives as long as the
    parent. With ``parent_pid`` a parent that was gone before this call is noticed too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if parent_pid and os.getppid() != parent_pid:
        sys.exit("the parent process has ended")
