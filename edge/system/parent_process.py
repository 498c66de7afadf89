"""Whether the process an agent belongs to still lives. A local agent must not outlive its coordinator."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """True while ``pid`` runs; a zombie does not."""
    if os.getppid() == pid:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")
