"""The time an open round has left."""

from __future__ import annotations

import time


class RoundClock:
    """Seconds left in the open round, on the monotonic clock; read by the inbox, set by the round."""

    def __init__(self, *, order_s: float = 0.0) -> None:
        """``order_s``: seconds that every order has from when it is sent; 0 = what is left of its round."""
        self._end = 0.0
        self._order_s = order_s

    def start(self, remaining_s: float) -> None:
        """The round ends ``remaining_s`` from now."""
        self._end = time.monotonic() + remaining_s

    def remaining_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    def for_orders_s(self) -> float:
        """Seconds that an order sent now has."""
        return self._order_s or self.remaining_s()
