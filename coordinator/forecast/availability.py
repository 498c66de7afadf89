"""When devices of a group are there, and for how long they stay: from shares by hour, or from measured sessions."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Protocol

import numpy as np

from coordinator.forecast.fleet_file import HOURS, DeviceGroup
from edge.contracts.errors import ConfigError

DAY_S = 86_400.0


class Availability(Protocol):
    """Of the devices of one group."""

    def share(self, at_s: float) -> float:
        """Share of the group that is there at ``at_s`` after midnight UTC of the first day."""

    def stays(self, at_s: float, count: int, draw: np.random.Generator) -> np.ndarray:
        """Seconds for which each of ``count`` devices that are there stays, [count]."""


class HourlyShares:
    """Shares by the hour of the group's clock, straight lines between the middles of hours; exponential sessions."""

    def __init__(self, group: DeviceGroup) -> None:
        self._shares = np.resize(np.asarray(group.online), HOURS)
        self._offset_s = group.utc_offset * 3600.0
        self._mean_s = group.session_minutes * 60.0

    def share(self, at_s: float) -> float:
        """See :class:`Availability`."""
        hour = ((at_s + self._offset_s) % DAY_S) / 3600.0 - 0.5
        return float(np.interp(hour, np.arange(-1, HOURS + 1), np.r_[self._shares[-1], self._shares, self._shares[0]]))

    def stays(self, at_s: float, count: int, draw: np.random.Generator) -> np.ndarray:
        """See :class:`Availability`; what is left of an exponential session is as long as a whole one."""
        return draw.exponential(self._mean_s, count)


class SessionTrace:
    """Measured sessions of some devices, for which the group's devices stand in equal parts.

    Args:
        path: CSV with the columns ``device``, ``begin_s`` and ``end_s``; whole days, repeated.

    Raises:
        ConfigError: it cannot be read, or a line is no session.
    """

    def __init__(self, path: Path, *, utc_offset: int = 0) -> None:
        sessions: list[tuple[float, float]] = []
        devices: set[str] = set()
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for number, row in enumerate(csv.DictReader(file), start=2):
                    begin, end = float(row["begin_s"]), float(row["end_s"])
                    if not 0 <= begin < end < float("inf"):
                        raise ValueError(f"line {number}: {begin:g} to {end:g} is no session")
                    sessions.append((begin, end))
                    devices.add(row["device"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                [f"{path}: cannot be read as sessions ({error}); give device,begin_s,end_s with 0 <= begin_s < end_s"]
            ) from error
        if not sessions:
            raise ConfigError([f"{path}: no session; give a line of device,begin_s,end_s for each"])
        self._begin_N, self._end_N = np.asarray(sessions).T
        self._devices = len(devices)
        self._length_s = float(np.ceil(self._end_N.max() / DAY_S) * DAY_S)
        self._offset_s = utc_offset * 3600.0

    def share(self, at_s: float) -> float:
        """See :class:`Availability`."""
        return min(1.0, len(self._left(at_s)) / self._devices)

    def stays(self, at_s: float, count: int, draw: np.random.Generator) -> np.ndarray:
        """See :class:`Availability`."""
        left = self._left(at_s)
        return draw.choice(left, count) if len(left) else np.zeros(count)

    def _left(self, at_s: float) -> np.ndarray:
        """Seconds left of the sessions that are open."""
        now = (at_s + self._offset_s) % self._length_s
        is_open_N = (self._begin_N <= now) & (now < self._end_N)
        left: np.ndarray = self._end_N[is_open_N] - now
        return left


def availability_of(group: DeviceGroup) -> Availability:
    """By its trace where it has one, else by its shares."""
    return SessionTrace(Path(group.trace), utc_offset=group.utc_offset) if group.trace else HourlyShares(group)
