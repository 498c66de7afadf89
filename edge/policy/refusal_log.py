"""What a device was asked and what it answered, for its owner: JSON lines in a file of bounded size.

Orders come as often as somebody sends them. An answer that is given again is no new line, and of a flood the first
lines stay, since those that follow are few: nobody wears out a memory card or pushes out what came before.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from edge.contracts.codec import encode_json
from edge.contracts.plan import WorkOrder

log = logging.getLogger("apportion.policy")

MOST_BYTES = 1 << 20
"""Of the file; a longer one is kept once more under another name, and a new one begun."""

LINES, LINES_PER_S = 500, 0.02
"""So many at once, and so many more a second: 1,700 a day, of 300 bytes."""

REMEMBERED = 256
"""Answers that are not written again."""


class RefusalLog:
    """Appends to ``path``; a disk that is full ends nothing.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._left, self._at = float(LINES), now()
        self._left_out = 0
        self._said: OrderedDict[tuple[str, str], None] = OrderedDict()

    def add(self, order: WorkOrder, answer: str, reason: str = "") -> None:
        """One order and its answer: ``taken``, or the code of its refusal with the rule and why."""
        if (order.assignment_id, answer) in self._said:
            self._said.move_to_end((order.assignment_id, answer))
            return
        now = self._now()
        self._left, self._at = min(LINES, self._left + (now - self._at) * LINES_PER_S), now
        if self._left < 1:
            self._left_out += 1
            return
        self._left -= 1
        self._said[order.assignment_id, answer] = None
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        line: dict[str, object] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "assignment_id": order.assignment_id,
            "federation": order.federation,
            "round": order.round,
            "attempt": order.attempt,
            "method": order.method,
            "is_masked": order.masking is not None,
            "answer": answer,
            "reason": reason,
        }
        if self._left_out:
            line["left_out"] = self._left_out
            self._left_out = 0
        try:
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.stem}.1{self._path.suffix}"))
            with self._path.open("ab") as file:
                file.write(encode_json(line) + b"\n")
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)
