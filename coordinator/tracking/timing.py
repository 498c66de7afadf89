"""How long parts of a round take, noted where they happen for whoever tracks them; nothing where nobody does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Timed:
    """A part that was timed, in seconds since 1970, and what it was about."""

    name: str
    began_s: float
    ended_s: float
    attributes: dict[str, str] = field(default_factory=dict)


class Clock:
    """Seconds since 1970 that never run backwards: the wall's when it was made, and the monotonic clock since."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._offset_s + time.monotonic()


class Stopwatch:
    """Notes what :func:`timed` times in its thread while it is :meth:`noting`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._noted: list[Timed] = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """The context in which it notes."""
        token = _noting.set(self)
        try:
            yield
        finally:
            _noting.reset(token)

    def add(self, timed: Timed) -> None:
        """Note one."""
        self._noted.append(timed)

    def take(self) -> list[Timed]:
        """What was noted since the last call."""
        noted, self._noted = self._noted, []
        return noted


_noting: ContextVar[Stopwatch | None] = ContextVar("noting", default=None)


@contextlib.contextmanager
def timed(name: str, **attributes: str) -> Iterator[None]:
    """Note how long the context takes."""
    stopwatch = _noting.get()
    if stopwatch is None:
        yield
        return
    began_s = stopwatch.clock.now()
    try:
        yield
    finally:
        stopwatch.add(Timed(name, began_s, stopwatch.clock.now(), attributes))
