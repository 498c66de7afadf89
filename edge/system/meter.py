"""What this process used: resident memory as the kernel counts it, and step times."""

from __future__ import annotations

import math
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far (VmHWM)."""
    return _status_bytes("VmHWM:")


def rss_bytes() -> int:
    """Resident set of this process now (VmRSS)."""
    return _status_bytes("VmRSS:")


def is_torch_loaded() -> bool:
    """Whether anything imported torch here; never on a sound device."""
    return "torch" in sys.modules


def percentile(values: list[float], share: float) -> float:
    """The nearest-rank percentile of ``values``; 0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _status_bytes(field: str) -> int:
    with _STATUS.open("rb") as status:
        for line in status:
            if line.startswith(field.encode()):
                return int(line.split()[1]) * 1024
    return 0
