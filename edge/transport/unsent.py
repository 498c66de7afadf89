"""What was handed to a connection with QoS 0 and has not left yet, so that whoever sends in bulk can wait for it.

paho takes everything at once and keeps it in memory until the socket does.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol

SMALL_BYTES = 4096
"""Payloads up to here are not counted: it is blocks that fill a memory."""

MOST_BYTES = 64 << 20

_LOOK_S = 0.002


class Handed(Protocol):
    """paho's ``MQTTMessageInfo``."""

    rc: int

    def is_published(self) -> bool:
        """Whether all of it went to the socket."""


class Unsent:
    """Counts payloads from :meth:`add` until they have left or :meth:`clear`."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._handed: deque[tuple[Handed, int]] = deque()

    def add(self, handed: Handed, size: int) -> None:
        """A message of ``size`` bytes was handed over; counted when it is no small one and was taken."""
        self._drop_sent()
        if size > SMALL_BYTES and handed.rc == 0:
            self._handed.append((handed, size))

    def has_room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes is one that may wait, too; small ones always are."""
        return size <= SMALL_BYTES or self.size() + size <= self._most_bytes

    def size(self) -> int:
        """Bytes that have not left."""
        self._drop_sent()
        return sum(size for _, size in list(self._handed))

    def wait(self, most_bytes: int, timeout_s: float) -> bool:
        """Whether at most ``most_bytes`` are unsent, within ``timeout_s``."""
        give_up_at = time.monotonic() + timeout_s
        while self.size() > most_bytes:
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_LOOK_S)
        return True

    def clear(self) -> None:
        """The connection is gone, and with it what was on its way."""
        self._handed.clear()

    def _drop_sent(self) -> None:
        while self._handed:
            try:
                first = self._handed[0]
            except IndexError:  # cleared meanwhile, by the connection's own thread
                return
            if _is_on_its_way(first[0]):
                return
            try:
                self._handed.popleft()
            except IndexError:
                return


def _is_on_its_way(handed: Handed) -> bool:
    try:
        return not handed.is_published()
    except (RuntimeError, ValueError):  # paho has marked it as lost with its connection, before we are told of that
        return False
