"""What one device may ask of a coordinator or relay: messages, bytes and answers. The surplus is dropped unread.

An honest device needs little. It beats every 5 s, repeats an offer, a report, keys or shares every 5 s, and says about
ten more things a round. Up go its update and these messages, the largest being shares for a cohort of 800, 250 kB every
5 s; down come the blobs that its order names, and its orders. So each device has

- messages other than blocks and requests for them: :data:`CONTROL`, and :data:`CONTROL_OF_AN_ORDER` more an order;
- bytes up and bytes down: :data:`BYTES`; with an order, :data:`TIMES` the bytes of its blobs down, and with the offer
  of its update :data:`TIMES` that up: once for the first time, the rest for links that lose and stores that are lost.
  What was spent of these is given again within :data:`AGAIN_S`. A block, or a request for one, costs at least
  :data:`LEAST_BYTES`: agents have blocks of 131,072;
- errors that it is told, and lines that tell people of them: :data:`ERRORS`.

Who was answered more than that is not heard until it is paid off. To be dropped costs a look into a dictionary; it is
told to ``named`` once, and again when the device has kept within its budget for :data:`STRETCH_S`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple


class Allowance(NamedTuple):
    """So much at once, and so much more a second."""

    at_once: float
    per_s: float


CONTROL = Allowance(400, 20)
"""Messages: forty devices' worth, and reconnects."""
CONTROL_OF_AN_ORDER = 32
BYTES = Allowance(8 << 20, 64 << 10)
TIMES = 4
AGAIN_S = 600.0
LEAST_BYTES = 16_384
ERRORS = Allowance(32, 1)
STRETCH_S = 60.0
NAMES = Allowance(50, 0.2)
"""Devices that are named, of all: without an identity there is no end of names."""
MOST_DEVICES = 131_072
"""Devices that are remembered; the one unheard of for longest is forgotten first, and is then as good as new."""


class _Bucket:
    """What is left of an allowance at a time; it can be below zero."""

    __slots__ = ("at", "at_once", "left", "per_s")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.at_once, self.per_s = allowance
        self.left, self.at = self.at_once, now

    def refill(self, now: float) -> float:
        self.left = min(self.at_once, self.left + max(0.0, now - self.at) * self.per_s)
        self.at = now
        return self.left

    def take(self, count: float, now: float) -> bool:
        if self.refill(now) < count:
            return False
        self.left -= count
        return True

    def allow(self, count: float) -> None:
        """As much as :data:`BYTES`, and ``count``, from now on and at once."""
        self.at_once = BYTES.at_once + count
        self.per_s = max(BYTES.per_s, self.at_once / AGAIN_S)
        self.left = self.at_once


class _Device:
    """Most of thousands were never answered anything large, nor told of an error: such buckets come when needed."""

    __slots__ = ("_down", "_errors", "control", "dropped_at", "offered", "ordered", "up")

    def __init__(self, now: float) -> None:
        self.control, self.up = _Bucket(CONTROL, now), _Bucket(BYTES, now)
        self._down: _Bucket | None = None
        self._errors: _Bucket | None = None
        self.ordered = self.offered = ""
        self.dropped_at: float | None = None

    def down(self, now: float) -> _Bucket:
        self._down = self._down or _Bucket(BYTES, now)
        return self._down

    def errors(self, now: float) -> _Bucket:
        self._errors = self._errors or _Bucket(ERRORS, now)
        return self._errors

    def is_indebted(self, now: float) -> bool:
        return self._down is not None and self._down.refill(now) < 0


class Budgets:
    """Budgets by device; any thread may ask.

    Args:
        now: monotonic seconds.

    Attributes:
        named: called with a device and why something of it was dropped, once a stretch, by whatever thread asked.
    """

    def __init__(
        self,
        named: Callable[[str, str], None] = lambda device, why: None,
        *,
        most_devices: int = MOST_DEVICES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.named = named
        self._now = now
        self._most_devices = most_devices
        self._devices: OrderedDict[str, _Device] = OrderedDict()
        self._names = _Bucket(NAMES, now())
        self._lock = threading.Lock()

    def admits(self, device: str, kind: str, size: int) -> bool:
        """Whether a message of ``size`` bytes, or a request over HTTPS, is to be used; it is paid for then."""
        with self._lock:
            now = self._now()
            own = self._of(device, now)
            why = self._surplus(own, kind, size, now)
            is_news = bool(why) and (own.dropped_at is None or now - own.dropped_at > STRETCH_S)
            if why:
                own.dropped_at = now
            is_named = is_news and self._names.take(1, now)
        if is_named:
            self.named(device, why)
        return not why

    @staticmethod
    def _surplus(own: _Device, kind: str, size: int, now: float) -> str:
        """Why the message is one too many; empty, and paid for, when it is not."""
        if own.is_indebted(now):
            return "asks for more than its orders can need"
        is_block = kind == "put"
        if not own.up.take(max(size, LEAST_BYTES) if is_block else size, now):
            return "sends more bytes than its work can need"
        if kind == "get":
            own.down(now).left -= LEAST_BYTES
        elif not is_block and not own.control.take(1, now):
            return f"sends more than {CONTROL.per_s:g} messages a second"
        return ""

    def answered(self, device: str, size: int) -> None:
        """``size`` bytes go to ``device``."""
        with self._lock:
            now = self._now()
            self._of(device, now).down(now).left -= size

    def may_hear_of_error(self, device: str) -> bool:
        """Whether ``device``, and whoever reads progress lines, is told of one more error; it is counted then."""
        with self._lock:
            now = self._now()
            return self._of(device, now).errors(now).take(1, now)

    def ordered(self, device: str, assignment_id: str, size: int) -> None:
        """``device`` has an order whose blobs are ``size`` bytes; said again, it changes nothing."""
        with self._lock:
            now = self._now()
            own = self._of(device, now)
            if own.ordered != assignment_id:
                own.ordered = assignment_id
                own.down(now).allow(TIMES * size)
                own.control.left = min(own.control.at_once, own.control.left + CONTROL_OF_AN_ORDER)

    def offered(self, device: str, assignment_id: str, size: int) -> None:
        """An update of ``size`` bytes, which can be what was ordered, is to come; said again, it changes nothing."""
        with self._lock:
            own = self._of(device, self._now())
            if own.offered != assignment_id:
                own.offered = assignment_id
                own.up.allow(TIMES * size)

    def _of(self, device: str, now: float) -> _Device:
        own = self._devices.get(device)
        if own is None:
            own = self._devices[device] = _Device(now)
            if len(self._devices) > self._most_devices:
                self._devices.popitem(last=False)
        else:
            self._devices.move_to_end(device)
        return own


def over_budget(device: str, why: str) -> str:
    """The line for people about messages in the name of a device; who said them is not known before they are read."""
    return (
        f"whoever speaks as {device} {why}: what is over its budget is dropped unread; mend or revoke it, or the "
        "broker that repeats what it says"
    )
