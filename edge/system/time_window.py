"""Part of every day, by a device's own clock: when its owner lets it train, and what its policy lets it be asked."""

from __future__ import annotations

import re
from dataclasses import dataclass

DAY_MINUTES = 24 * 60
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class TimeWindow:
    """Part of every day, from ``start`` up to and without ``end``, minutes after midnight; it may pass midnight."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> TimeWindow:
        """``22:00-06:30``.

        Raises:
            ValueError: not of that form, or no time at all.
        """
        found = _WINDOW.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no time of day: write HH:MM-HH:MM, as in 22:00-06:30")
        hours = [int(part) for part in found.groups()]
        window = cls(hours[0] * 60 + hours[1], hours[2] * 60 + hours[3])
        if window.start == window.end:
            raise ValueError(f"{text!r} begins when it ends; leave it out to train at any time")
        return window

    def holds(self, minute: int) -> bool:
        """Whether ``minute`` of the day is within."""
        return (minute - self.start) % DAY_MINUTES < (self.end - self.start) % DAY_MINUTES

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02d}:{minute % 60:02d}" for minute in (self.start, self.end))
