"""How often an address may claim, and all of them together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PER_ADDRESS, IN_ALL = (30, 0.5), (120, 5.0)
"""How many claims at once, and how many more a second. A token cannot be guessed; this is against load."""

_MAX_ADDRESSES = 4096


class RateLimit:
    """So many at once and so many more a second, for each address and for all together.

    Args:
        now: seconds, on a clock that is never set back.
    """

    def __init__(
        self,
        per_address: tuple[int, float] = PER_ADDRESS,
        in_all: tuple[int, float] = IN_ALL,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_address, self._in_all, self._now = per_address, in_all, now
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}
        self._left_in_all = (float(in_all[0]), now())

    def wait_s(self, address: str) -> float:
        """0 when ``address`` may go on now, which is then counted; else how long it has to wait."""
        with self._lock:
            now = self._now()
            count, rate = self._per_address
            mine = _refilled(self._left.get(address, (float(count), now)), self._per_address, now)
            everyones = _refilled(self._left_in_all, self._in_all, now)
            short = max((1.0 - mine) / rate, (1.0 - everyones) / self._in_all[1])
            if short > 0:
                return short
            if len(self._left) >= _MAX_ADDRESSES:
                # Whoever is full again is as good as new.
                kept = {
                    name: left for name, left in self._left.items() if _refilled(left, self._per_address, now) < count
                }
                self._left = kept if len(kept) < _MAX_ADDRESSES else {}
            self._left[address] = (mine - 1.0, now)
            self._left_in_all = (everyones - 1.0, now)
            return 0.0


def _refilled(left: tuple[float, float], limit: tuple[int, float], now: float) -> float:
    return min(float(limit[0]), left[0] + (now - left[1]) * limit[1])
