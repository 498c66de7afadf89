"""That a lie is told before a run is over which waits for nobody.

A buffered run ends with enough updates, also while a liar's first one is on its way: then there was no lie, and nothing
that anybody could be named for. So honest devices have trained no sooner than each liar has been answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

LONGEST_S = 20.0
"""So long and no longer: a liar that a fault keeps from being answered holds up nobody for good."""


class FirstWord:
    """Who has still to be answered, of ``liars``."""

    def __init__(self, liars: Collection[str]) -> None:
        self._waited_for = set(liars)
        self._all_answered = asyncio.Event()

    def answered(self, words: Collection[str]) -> None:
        """The coordinator has told somebody, named in ``words``, what has become of its update."""
        self._waited_for.difference_update(words)
        if not self._waited_for:
            self._all_answered.set()

    async def wait(self) -> None:
        """Until all have been answered."""
        if self._waited_for:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), LONGEST_S)
            self._waited_for.clear()
