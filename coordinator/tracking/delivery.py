"""Hands events to one tracker in a thread of its own, so that whatever it does, the run neither waits nor ends.

A tracker that is slow finds at most ``queue`` events waiting; further ones are dropped and counted. One that raises
misses that event. Of each the first is told, the others are numbers.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from coordinator.tracking.events import Event, RoundCommitted
from coordinator.tracking.tracker import Tracker

log = logging.getLogger("apportion.tracking")


class Delivery:
    """One tracker's queue and thread.

    Args:
        most: events that may wait.
        has_rounds: told how many rounds the tracker has, after each.
        say: a line for people.

    Attributes:
        dropped: events that the tracker did not get, or failed at.
    """

    def __init__(
        self, name: str, tracker: Tracker, *, most: int, has_rounds: Callable[[int], None], say: Callable[[str], None]
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._has_rounds = has_rounds
        self._say = say
        self._waiting: queue.Queue[Event | None] = queue.Queue(most)
        self._is_told_slow = self._is_told_failed = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"tracking-{name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Hand ``event`` over; returns at once."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self.dropped += 1
            if not self._is_told_slow:
                self._is_told_slow = True
                self._say(f"tracking: {self._name} is too slow, events are dropped; the run goes on")

    def close(self, wait_s: float, last: Event | None = None) -> None:
        """Hand over ``last`` and wait for what is left to be taken, for ``wait_s`` at most in all."""
        give_up_at = time.monotonic() + wait_s
        for event in (last, None) if last is not None else (None,):
            try:
                self._waiting.put(event, timeout=max(0.0, give_up_at - time.monotonic()))
            except queue.Full:
                break
        self._thread.join(max(0.0, give_up_at - time.monotonic()))
        if self._thread.is_alive():
            left = self._waiting.qsize()
            self._say(f"tracking: {self._name} has not taken {left} events within {wait_s:g} s; they are left out")
        elif self.dropped:
            self._say(f"tracking: {self._name} has missed {self.dropped} events")

    def _run(self) -> None:
        try:
            while (event := self._waiting.get()) is not None:
                try:
                    self._tracker.take(event)
                    if isinstance(event, RoundCommitted):
                        self._has_rounds(event.step)
                except Exception as error:  # whatever a tracker's package raises is no reason to end a run
                    self._failed(error)
        finally:
            try:
                self._tracker.close()
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.dropped += 1
        log.debug("tracker %s", self._name, exc_info=error)
        if not self._is_told_failed:
            self._is_told_failed = True
            what = " ".join(str(error).split())[:200] or type(error).__name__
            self._say(f"tracking: {self._name} fails ({what}); the run goes on without it")
