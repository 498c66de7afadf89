"""What a device was asked and what it answered, for its owner: JSON lines in a file of bounded size."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from edge.contracts.codec import encode_json
from edge.contracts.plan import WorkOrder

log = logging.getLogger("apportion.policy")

MOST_BYTES = 1 << 20
"""Of the file; a longer one is kept once more under another name, and a new one begun."""


class RefusalLog:
    """Appends to ``path``; a disk that is full ends nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, order: WorkOrder, answer: str, reason: str = "") -> None:
        """One order and its answer: ``taken``, or the code of its refusal with the rule and why."""
        line = {
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
        try:
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.stem}.1{self._path.suffix}"))
            with self._path.open("ab") as file:
                file.write(encode_json(line) + b"\n")
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)
