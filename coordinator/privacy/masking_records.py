"""What is known of an attempt's masks, all of it in the ledger, and how devices are told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from edge.contracts.codec import decode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.masking import Keys, Member, Reveal
from edge.contracts.messages import Ack
from edge.contracts.plan import assignment_id
from edge.serving.publisher import Publisher

Body = TypeVar("Body", bound=msgspec.Struct)

COORDINATOR = ""
"""Whose the rows of decisions are."""

OPEN = ("published", "collecting")

LIED = "masking-lie"
"""The code of an assignment whose device lied about its masks."""


class Decided(msgspec.Struct, frozen=True):
    """Who is in the roster, or whose mail was delivered, by device id, and how many of them undo a mask."""

    devices: tuple[str, ...]
    threshold: int = 0


class MaskingRecords:
    """Rows of the ledger, by attempt and device.

    Args:
        federation: its name, from which assignment ids follow.
        notify: called when there is something new to decide on.
        say: progress lines for people.
    """

    def __init__(
        self,
        federation: str,
        ledger: Ledger,
        publisher: Publisher,
        notify: Callable[[], None],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._federation = federation
        self._ledger = ledger
        self._publisher = publisher
        self._notify = notify
        self._say = say

    def identity(self, round_index: int, attempt: int, device: str) -> str:
        """The assignment of a device."""
        return assignment_id(self._federation, round_index, device, attempt, self._ledger.nonce)

    def assignment(self, round_index: int, attempt: int, device: str) -> Assignment | None:
        """What ``device`` was given in an attempt."""
        return self._ledger.assignments.find(self.identity(round_index, attempt, device))

    @property
    def is_signed(self) -> bool:
        """Whether what is said here can be told from what somebody between says."""
        return self._publisher.is_signed

    def roster(self, round_index: int, attempt: int) -> Decided | None:
        """Who masks together, once that is decided."""
        return self._decided(round_index, attempt, "roster")

    def mailed(self, round_index: int, attempt: int) -> Decided | None:
        """Whose shares were delivered, once that is decided."""
        return self._decided(round_index, attempt, "mail")

    def proceeding(self, round_index: int, attempt: int) -> Decided | None:
        """Who may mask updates, once that is decided."""
        return self._decided(round_index, attempt, "proceed")

    def revealing(self, round_index: int, attempt: int) -> Reveal | None:
        """What is asked of every device that reported, once that is decided; its assignment is left out."""
        row = self._ledger.masking.find(round_index, attempt, COORDINATOR, "reveal")
        return None if row is None else decode_msgpack(row, Reveal, limit=MAX_MESSAGE_BYTES)

    def excluding(self, round_index: int, attempt: int) -> tuple[str, ...]:
        """Who gave shares of other secrets than it signed, once the others were asked to go on without it."""
        decided = self._decided(round_index, attempt, "exclude")
        return () if decided is None else decided.devices

    def counted(self, round_index: int, attempt: int) -> tuple[str, ...]:
        """Whose updates are in the sum that is unmasked."""
        reveal = self.revealing(round_index, attempt)
        excluded = self.excluding(round_index, attempt)
        return () if reveal is None else tuple(device for device in reveal.reported if device not in excluded)

    def helpers(self, round_index: int, attempt: int) -> tuple[str, ...]:
        """Whose shares take the masks off, once that is decided: those alone, however often the sum is made."""
        decided = self._decided(round_index, attempt, "helpers")
        return () if decided is None else decided.devices

    def members(self, round_index: int, attempt: int) -> tuple[Member, ...]:
        """The roster with its keys; there is one."""
        decided = self.roster(round_index, attempt)
        assert decided is not None
        keys = self.said(round_index, attempt, "keys", Keys)
        return tuple(Member(device, keys[device].sharing, keys[device].masking) for device in decided.devices)

    def rows(self, round_index: int, attempt: int, kind: str) -> dict[str, bytes]:
        """Device -> what is kept of it as ``kind``."""
        return self._ledger.masking.of_attempt(round_index, attempt, kind)

    def spoken(self, round_index: int, attempt: int, kind: str) -> frozenset[str]:
        """The devices that :meth:`rows` has something of."""
        return self._ledger.masking.devices(round_index, attempt, kind)

    def said(self, round_index: int, attempt: int, kind: str, body: type[Body]) -> dict[str, Body]:
        """Device -> what it said as ``kind``."""
        rows = self._ledger.masking.of_attempt(round_index, attempt, kind)
        return {device: decode_msgpack(row, body, limit=MAX_MESSAGE_BYTES) for device, row in rows.items() if device}

    def record(self, round_index: int, attempt: int, device: str, kind: str, body: bytes) -> bool:
        """Keep ``body``; the first of a kind stays, False for any other."""
        if not self._ledger.masking.add(round_index, attempt, device, kind, body):
            return False
        self._notify()
        return True

    def tell(self, device: str, kind: str, body: msgspec.Struct) -> None:
        """Say something of masks to ``device``, signed where there is a key."""
        self._publisher.say_signed(device, kind, body)

    def open(self, device: str, identity: str) -> Assignment | None:
        """The assignment while its masks can still be agreed on; whose it no longer is, is told to forget it."""
        entry = self._ledger.assignments.find(identity)
        if entry is None or entry.device != device:
            return None
        attempt = self._ledger.rounds.find(entry.round, entry.attempt)
        if attempt is not None and attempt.state in OPEN and entry.state in ("open", "accepted"):
            return entry
        if entry.state != "reported":
            self._publisher.ack(device, Ack(identity, False, "stale-round", f"the assignment is {entry.state}"))
        return None

    def lied(self, entry: Assignment, why: str) -> None:
        """Name the device of ``entry``; while it is not answered its assignment is rejected. Once for an attempt."""
        if not self._ledger.masking.add(entry.round, entry.attempt, entry.device, "lie", why.encode()):
            return
        self._say(f"round {entry.round + 1}: {entry.device} lied about its masks and is barred: {why}")
        now = self._ledger.assignments.find(entry.assignment_id)
        if now is not None and now.state in ("open", "accepted"):
            self._ledger.assignments.move(entry.assignment_id, "rejected", code=LIED, reason=why[:1000])
            self._publisher.ack(entry.device, Ack(entry.assignment_id, False, LIED, why[:1000]))
        self._notify()

    def _decided(self, round_index: int, attempt: int, kind: str) -> Decided | None:
        row = self._ledger.masking.find(round_index, attempt, COORDINATOR, kind)
        return None if row is None else decode_msgpack(row, Decided, limit=MAX_MESSAGE_BYTES)
