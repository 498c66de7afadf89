"""Orders whose assignments are settled, kept on disk: one that arrives again is a replay and is not carried out again.

An order is known by everything in it, the seconds left included: a signature covers those, so whoever replays an order
cannot change them, while a coordinator that orders again (a new run of the same federation begins at round 0 with the
same assignment ids) has measured other ones. What is not known here is carried out and counts once all the same: the
coordinator settles an assignment that it has a report of as soon as it is accepted.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from pathlib import Path

import msgspec

from edge.contracts.codec import encode_msgpack
from edge.contracts.plan import WorkOrder
from edge.system.atomic_files import write_whole

log = logging.getLogger("apportion.agent")

REPLAYED = "replayed-order"
REMEMBERED = 1000
_OPEN = 16
"""Assignments at a time whose orders have arrived and are not settled yet: one in hand, and refused ones."""


class SettledWork:
    """The last :data:`REMEMBERED` settled orders, in ``path``; read when asked for, so that it takes no memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: OrderedDict[str, set[str]] = OrderedDict()

    def is_replay(self, order: WorkOrder) -> bool:
        """Whether exactly this order is settled; if not, it is one to settle when its assignment is acknowledged."""
        digest = _digest(order)
        if digest in self._digests():
            return True
        self._open.setdefault(order.assignment_id, set()).add(digest)
        self._open.move_to_end(order.assignment_id)
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return False

    def settle(self, assignment_id: str) -> None:
        """Remember every order that arrived for the assignment; nothing when none has."""
        digests = self._open.pop(assignment_id, None)
        if digests is None:
            return
        kept = [*self._digests(), *sorted(digests)][-REMEMBERED:]
        try:
            write_whole(self._path, "".join(f"{digest}\n" for digest in kept).encode())
        except OSError as error:  # a full disk is no reason to end: what is replayed then is work for nothing
            log.warning("%s cannot be written: %s", self._path, error)
            self._open[assignment_id] = digests  # written with the next acknowledgement of it, if there is one

    def _digests(self) -> list[str]:
        try:
            return self._path.read_text(encoding="ascii").split()
        except (FileNotFoundError, UnicodeDecodeError):
            return []


def _digest(order: WorkOrder) -> str:
    """SHA-256 of ``order`` but its ticket, which is no part of what is to be done."""
    return hashlib.sha256(encode_msgpack(msgspec.structs.replace(order, bulk="", upload_to=""))).hexdigest()
