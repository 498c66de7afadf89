"""Messages of many devices for one handler: devices take turns, so that nobody waits for more than one of another's."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")

TURNS = 8
"""Items of earlier lanes, one after the other, that a later one waits for: where messages come faster than they are
handled, what makes them end would never be handled else. A thousand devices that wait for a place to upload say so
every 5 s; the blocks of those that have one are in the later lane."""


class FairQueue(Generic[T]):
    """Items by key, those of a key in their order; any thread may put, a signal handler too, and one takes.

    Args:
        lanes: how many; what is in a lane goes when the ones before it are empty, or had :data:`TURNS` items.
    """

    def __init__(self, lanes: int = 1) -> None:
        self._lanes: list[OrderedDict[str, deque[T]]] = [OrderedDict() for _ in range(lanes)]
        self._count: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._passed = 0
        self._lock = threading.RLock()  # a signal handler puts in the thread that takes

    def put(self, key: str, item: T, lane: int = 0) -> None:
        """Add ``item``; returns at once."""
        with self._lock:
            self._lanes[lane].setdefault(key, deque()).append(item)
        self._count.put(None)  # after the item: whoever takes this finds one

    def has(self, key: str, lane: int) -> bool:
        """Whether something of ``key`` waits in that lane."""
        return key in self._lanes[lane]

    def get(self, timeout_s: float | None = None) -> T:
        """The next item: of the key that has waited for its turn for longest.

        Raises:
            queue.Empty: none came within ``timeout_s``; None waits without end.
        """
        self._count.get(timeout=timeout_s)
        return self._taken()

    def get_nowait(self) -> T:
        """The next item.

        Raises:
            queue.Empty: there is none.
        """
        self._count.get_nowait()
        return self._taken()

    def _taken(self) -> T:
        with self._lock:
            first, *later = [lane for lane in self._lanes if lane]
            is_due = bool(later) and self._passed >= TURNS
            lane = later[0] if is_due else first
            self._passed = self._passed + 1 if later and not is_due else 0
            key = next(iter(lane))
            own = lane[key]
            item = own.popleft()
            if own:
                lane.move_to_end(key)
            else:
                del lane[key]
            return item


def sender(topic: str) -> tuple[str, str]:
    """Device and kind of an ``up`` topic, whatever else is wrong with it."""
    levels = topic.split("/", 5)
    return (levels[4][:64], levels[5]) if len(levels) == 6 else (topic[:64], "")
