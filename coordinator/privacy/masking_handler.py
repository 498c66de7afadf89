"""What devices say about their masks: checked, written to the ledger, answered from it. One handler per message kind.

The handler decides nothing: when a roster is complete, who is too late and what is revealed is
:mod:`coordinator.rounds.stages.secure_aggregation`'s, and in the ledger before it is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, Envelope
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import KEY_BYTES, Complaint, Keys, Mail, Member, Reveal, Revealed, Roster, Shares
from edge.contracts.messages import Ack
from edge.contracts.plan import assignment_id
from edge.masking.commitments import BOX_BYTES, DIGEST_BYTES, PAIR_BYTES, PARCEL_BYTES, digest_of, unpacked
from edge.masking.keys import agree, check_public, public_of, share_purpose
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


class MaskingHandler:
    """Handles ``keys``, ``shares``, ``complaint`` and ``revealed``; stateless, all it knows is in the ledger.

    Whoever says what cannot be, or gives others what they cannot use, is named, with why, in the ledger: a lie. So that
    it is the liar and nobody else, shares come with their digests, and who complains shows the key that opens them.

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
        self.handlers: dict[str, Callable[[str, Envelope], None]] = {
            "keys": self._keys,
            "shares": self._shares,
            "complaint": self._complaint,
            "revealed": self._revealed,
        }

    def identity(self, round_index: int, attempt: int, device: str) -> str:
        """The assignment of a device."""
        return assignment_id(self._federation, round_index, device, attempt, self._ledger.nonce)

    def roster(self, round_index: int, attempt: int) -> Decided | None:
        """Who masks together, once that is decided."""
        return self._decided(round_index, attempt, "roster")

    def mailed(self, round_index: int, attempt: int) -> Decided | None:
        """Whose shares were delivered, once that is decided."""
        return self._decided(round_index, attempt, "mail")

    def revealing(self, round_index: int, attempt: int) -> Reveal | None:
        """What is asked of every device that reported, once that is decided; its assignment is left out."""
        row = self._ledger.masking.of_attempt(round_index, attempt, "reveal").get(COORDINATOR)
        return None if row is None else decode_msgpack(row, Reveal, limit=MAX_MESSAGE_BYTES)

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

    def said(self, round_index: int, attempt: int, kind: str, body: type[Body]) -> dict[str, Body]:
        """Device -> what it said as ``kind``."""
        rows = self._ledger.masking.of_attempt(round_index, attempt, kind)
        return {device: decode_msgpack(row, body, limit=MAX_MESSAGE_BYTES) for device, row in rows.items() if device}

    def send_rosters(self, round_index: int, attempt: int, devices: Sequence[str] | None = None) -> None:
        """Tell the members, or some of them, who they mask with."""
        decided = self.roster(round_index, attempt)
        assert decided is not None
        members = self.members(round_index, attempt)
        for device in decided.devices if devices is None else devices:
            identity = self.identity(round_index, attempt, device)
            self._publisher.say_signed(device, "roster", Roster(identity, decided.threshold, members))

    def send_mail(self, round_index: int, attempt: int, devices: Sequence[str] | None = None) -> None:
        """Deliver the sealed shares to those they are for, or to some of them."""
        decided = self.mailed(round_index, attempt)
        assert decided is not None
        shares = self.said(round_index, attempt, "shares", Shares)
        for device in decided.devices if devices is None else devices:
            identity = self.identity(round_index, attempt, device)
            boxes = {sender: shares[sender].sealed[device] for sender in decided.devices if sender != device}
            self._publisher.say_signed(device, "mail", Mail(identity, boxes))

    def send_reveals(self, round_index: int, attempt: int, devices: Sequence[str]) -> None:
        """Ask ``devices`` for what takes the masks off."""
        reveal = self.revealing(round_index, attempt)
        assert reveal is not None
        for device in devices:
            identity = self.identity(round_index, attempt, device)
            self._publisher.say_signed(device, "reveal", msgspec.structs.replace(reveal, assignment_id=identity))

    def _keys(self, device: str, envelope: Envelope) -> None:
        keys = envelope.read(Keys)
        entry = self._open(device, keys.assignment_id)
        if entry is None:
            return
        decided = self.roster(entry.round, entry.attempt)
        if device not in self._ledger.masking.of_attempt(entry.round, entry.attempt, "keys"):
            try:
                check_public(keys.sharing, where="key for shares")
                check_public(keys.masking, where="key for masks")
            except MessageRejected as error:
                self.lied(entry, str(error))
                return
        self._keep(entry, "keys", keys)
        if decided is not None and device in decided.devices:
            self.send_rosters(entry.round, entry.attempt, [device])

    def _shares(self, device: str, envelope: Envelope) -> None:
        shares = envelope.read(Shares)
        entry = self._open(device, shares.assignment_id)
        decided = None if entry is None else self.roster(entry.round, entry.attempt)
        if entry is None or decided is None:
            return
        if {*shares.sealed, device} != set(decided.devices) or device in shares.sealed:
            raise MessageRejected(f"shares for {len(shares.sealed)} devices that are not the roster's others")
        sizes = {*map(len, shares.sealed.values()), len(shares.own), len(shares.self_mask)}
        is_first = device not in self._ledger.masking.of_attempt(entry.round, entry.attempt, "shares")
        if is_first and sizes != {PARCEL_BYTES, PAIR_BYTES, DIGEST_BYTES}:
            self.lied(entry, f"shares and digests of {sorted(sizes)} bytes, {PARCEL_BYTES} a member expected")
            return
        self._keep(entry, "shares", shares)
        mailed = self.mailed(entry.round, entry.attempt)
        if mailed is not None and device in mailed.devices:
            self.send_mail(entry.round, entry.attempt, [device])

    def _revealed(self, device: str, envelope: Envelope) -> None:
        revealed = envelope.read(Revealed)
        entry = self._ledger.assignments.find(revealed.assignment_id)
        reveal = None if entry is None else self.revealing(entry.round, entry.attempt)
        if entry is None or entry.device != device or reveal is None or device not in reveal.reported:
            return
        if self.helpers(entry.round, entry.attempt):
            return  # they are chosen, and more shares must not change what the sum is made with
        asked = (set(reveal.reported), set(reveal.dropped))
        if (set(revealed.self_masks), set(revealed.masking_keys)) != asked:
            count = len(revealed.self_masks) + len(revealed.masking_keys)
            raise MessageRejected(f"{count} shares that are not those asked for")
        shares = self.said(entry.round, entry.attempt, "shares", Shares)
        for kind, told in enumerate((revealed.self_masks, revealed.masking_keys)):
            for giver, share in told.items():
                digests = shares[device].own if giver == device else shares[giver].sealed[device][BOX_BYTES:]
                if digest_of(share) != digests[kind * DIGEST_BYTES :][:DIGEST_BYTES]:
                    self.lied(entry, f"it tells another share of '{giver}' than it was given")
                    return
        self._keep(entry, "revealed", revealed)

    def _complaint(self, device: str, envelope: Envelope) -> None:
        complaint = envelope.read(Complaint)
        entry = self._open(device, complaint.assignment_id)
        mailed = None if entry is None else self.mailed(entry.round, entry.attempt)
        if entry is None or mailed is None or not {device, complaint.sender} <= set(mailed.devices):
            return
        if len(complaint.sharing_key) != KEY_BYTES:
            self.lied(entry, f"it complains of '{complaint.sender}' with a key of {len(complaint.sharing_key)} bytes")
            return
        here = (entry.round, entry.attempt)
        members = {member.device: member for member in self.members(*here)}
        if public_of(complaint.sharing_key) != members[device].sharing:
            self.lied(entry, f"it complains of '{complaint.sender}' and shows another key than its own")
            return
        purpose = share_purpose(self.identity(*here, complaint.sender), entry.assignment_id)
        key = agree(complaint.sharing_key, members[complaint.sender].sharing, purpose)
        parcel = self.said(*here, "shares", Shares)[complaint.sender].sealed[device]
        try:
            unpacked(key, parcel, where=f"shares for '{device}'")
        except MessageRejected as error:
            sender = self._ledger.assignments.find(self.identity(*here, complaint.sender))
            assert sender is not None
            self.lied(sender, str(error))
        else:
            why = f"it complains of '{complaint.sender}', whose shares are in order"
            if self._publisher.is_signed:
                self.lied(entry, why)
            else:  # whoever carried the mail may have changed it; the others go on without the device
                self._ledger.assignments.expire(entry.assignment_id)
                self._publisher.ack(device, Ack(entry.assignment_id, False, "stale-round", why))
                self._notify()

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

    def _keep(self, entry: Assignment, kind: str, body: msgspec.Struct) -> None:
        """The first of a kind stays; devices repeat themselves."""
        if self._ledger.masking.add(entry.round, entry.attempt, entry.device, kind, encode_msgpack(body)):
            self._notify()

    def _open(self, device: str, identity: str) -> Assignment | None:
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

    def _decided(self, round_index: int, attempt: int, kind: str) -> Decided | None:
        row = self._ledger.masking.of_attempt(round_index, attempt, kind).get(COORDINATOR)
        return None if row is None else decode_msgpack(row, Decided, limit=MAX_MESSAGE_BYTES)
