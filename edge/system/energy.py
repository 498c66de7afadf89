"""What work took of the processor and, where the board counts it, of energy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_COUNTERS = (("sys/class/powercap", "*/energy_uj"), ("sys/class/hwmon", "hwmon*/energy*_input"))
"""Counters of microjoules: of a processor's package (RAPL), and of a board's own sensors."""

_PACKAGE = "intel-rapl:"


@dataclass(frozen=True)
class Spent:
    """What a stretch of work took.

    Attributes:
        cpu_s: seconds of processor time of this process, all of its threads.
        joules: of the whole board or processor, whatever else ran on it; None where nothing counts them.
    """

    cpu_s: float
    joules: float | None


class EnergyMeter:
    """Measures from its making.

    Args:
        root: where the system's files are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._counters = {path: value for path in _paths(root) if (value := _number(path)) is not None}
        self._cpu_s = time.process_time()

    def spent(self) -> Spent:
        """What was taken since."""
        return Spent(time.process_time() - self._cpu_s, self._joules())

    def _joules(self) -> float | None:
        """Sum over counters; one that began anew is counted over its end where it says where that is."""
        total = 0
        for path, begun in self._counters.items():
            now = _number(path)
            if now is None:
                return None
            if now < begun:
                end = _number(path.with_name("max_energy_range_uj"))
                if end is None:
                    return None
                now += end
            total += now - begun
        return total / 1e6 if self._counters else None


def _paths(root: Path) -> list[Path]:
    """Counters that do not hold each other: of a processor its packages, not their parts."""
    found = [path for folder, pattern in _COUNTERS for path in sorted((root / folder).glob(pattern))]
    return [p for p in found if not (p.parent.name.startswith(_PACKAGE) and p.parent.name.count(":") > 1)]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
