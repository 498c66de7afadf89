"""How many uploads run at the same time: what is granted and not here yet is in the broker's memory, or in ours.

A thousand devices that finish together would have half a gigabyte on its way. Whoever is not admitted simply gets no
grant yet, and goes on offering, as for any answer that does not come.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

UPLOADS_AT_ONCE = 24
"""With windows of 384 KiB, 9 MiB on their way at most: less than a tenth of a second of a gigabit."""

SILENT_S = 15.0
"""An upload that shows nothing for so long has its place taken; its device may still go on."""


class Admission:
    """Places for uploads by assignment, given in the order of their offers.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, at_once: int = UPLOADS_AT_ONCE, *, now: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._now = now
        self._heard: dict[str, float] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Offers that have no place yet."""
        return len(self._waiting)

    def ask(self, assignment_id: str) -> bool:
        """Whether the upload has a place now; it waits for one otherwise."""
        if assignment_id not in self._heard:
            self._drop_silent()
            if len(self._heard) >= self._at_once:
                self._waiting[assignment_id] = None
                return False
        self._waiting.pop(assignment_id, None)
        self._heard[assignment_id] = self._now()
        return True

    def is_waiting(self, assignment_id: str) -> bool:
        """Whether the upload was offered and has no place yet."""
        return assignment_id in self._waiting

    def heard(self, assignment_id: str) -> None:
        """Something of the upload arrived."""
        if assignment_id in self._heard:
            self._heard[assignment_id] = self._now()

    def leave(self, assignment_id: str) -> list[str]:
        """The upload is over, whatever became of it; those that have a place now, to be told."""
        self._waiting.pop(assignment_id, None)
        if self._heard.pop(assignment_id, None) is None:
            return []
        admitted = []
        while self._waiting and len(self._heard) < self._at_once:
            following, _ = self._waiting.popitem(last=False)
            self._heard[following] = self._now()
            admitted.append(following)
        return admitted

    def _drop_silent(self) -> None:
        last = self._now() - SILENT_S
        for assignment_id in [key for key, heard in self._heard.items() if heard < last]:
            del self._heard[assignment_id]
