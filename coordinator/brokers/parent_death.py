"""Ends a child with its parent, whatever ends the parent.

``python -m coordinator.brokers.parent_death PARENT_PID COMMAND...`` does it for a program that is not ours: the
request survives ``exec`` (but not a change of user).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends; exits when ``parent`` has ended already.

    To the kernel the parent is the thread that started this process: start children from a thread that stays.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
