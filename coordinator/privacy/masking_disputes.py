"""Complaints about shares, and who is wrong: the one who gave them opens them, and the coordinator looks.

What is opened is one share of each of a device's two secrets, in an attempt in which it masks nothing: the secrets are
worth nothing then. There is one dispute in an attempt, and with it the attempt ends.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coordinator.ledger.records import Assignment
from coordinator.privacy.masking_records import COORDINATOR, MaskingRecords
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, Envelope
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import KEY_BYTES, Complaint, Dispute, Opening, Shares
from edge.masking.commitments import key_of, unpacked
from edge.masking.keys import check_public, public_of, share_purpose

LEFT_OUT = "left-out"
"""What is kept of a device that the next attempt goes without, though it is no liar: why."""


class Disputed(msgspec.Struct, frozen=True):
    """``receiver`` complains of what ``sender`` gave it."""

    sender: str
    receiver: str


class MaskingDisputes:
    """Handles ``complaint`` and ``opening``; stateless, all it knows is in the ledger."""

    def __init__(self, records: MaskingRecords) -> None:
        self._records = records
        self.handlers: dict[str, Callable[[str, Envelope], None]] = {
            "complaint": self._complaint,
            "opening": self._opening,
        }

    def of(self, round_index: int, attempt: int) -> Disputed | None:
        """What the attempt is held up by."""
        row = self._records.rows(round_index, attempt, "dispute").get(COORDINATOR)
        return None if row is None else decode_msgpack(row, Disputed, limit=MAX_MESSAGE_BYTES)

    def leave_out(self, round_index: int, attempt: int, device: str, why: str) -> bool:
        """Have the next attempt go without ``device``, which nothing is held against; False when that is known."""
        return self._records.record(round_index, attempt, device, LEFT_OUT, why.encode())

    def _complaint(self, device: str, envelope: Envelope) -> None:
        complaint = envelope.read(Complaint)
        entry = self._records.open(device, complaint.assignment_id)
        mailed = None if entry is None else self._records.mailed(entry.round, entry.attempt)
        if entry is None or mailed is None or complaint.sender == device:
            return
        here = (entry.round, entry.attempt)
        if not {device, complaint.sender} <= set(mailed.devices):
            return
        if device in self._records.spoken(*here, "checked") or self._records.proceeding(*here) is not None:
            raise MessageRejected(f"a complaint of '{complaint.sender}' after all shares were said to be in order")
        dispute = self.of(*here)
        if dispute is None:
            try:
                check_public(key_of(self._parcel(*here, complaint.sender, device)), where=f"shares for '{device}'")
            except MessageRejected as error:
                self._records.lied(self._entry(*here, complaint.sender), str(error))
                return
            dispute = Disputed(complaint.sender, device)
            self._records.record(*here, COORDINATOR, "dispute", encode_msgpack(dispute))
        if dispute == Disputed(complaint.sender, device):  # said again as often as the complaint is
            self._tell(*here, dispute)
        self.remind(device, *here)

    def remind(self, device: str, round_index: int, attempt: int) -> None:
        """Tell ``device`` again of a dispute about it: whatever it says until it opens, it may not have heard of it."""
        dispute = self.of(round_index, attempt)
        if dispute is not None and dispute.sender == device:
            self._tell(round_index, attempt, dispute)

    def _tell(self, round_index: int, attempt: int, dispute: Disputed) -> None:
        identity = self._records.identity(round_index, attempt, dispute.sender)
        self._records.tell(dispute.sender, "dispute", Dispute(identity, dispute.receiver))

    def _opening(self, device: str, envelope: Envelope) -> None:
        opening = envelope.read(Opening)
        entry = self._records.open(device, opening.assignment_id)
        here = None if entry is None else (entry.round, entry.attempt)
        if entry is None or here is None or self.of(*here) != Disputed(device, opening.receiver):
            return
        if self._records.rows(*here, "lie").keys() & {device, opening.receiver} or self._records.rows(*here, LEFT_OUT):
            return  # judged already
        parcel = self._parcel(*here, device, opening.receiver)
        if len(opening.key) != KEY_BYTES or public_of(opening.key) != key_of(parcel):
            self._records.lied(entry, f"it opens its shares for '{opening.receiver}' with another key than theirs")
            return
        receiver = self._entry(*here, opening.receiver)
        (member,) = [m for m in self._records.members(*here) if m.device == opening.receiver]
        purpose = share_purpose(entry.assignment_id, receiver.assignment_id)
        try:
            unpacked(opening.key, member.sharing, purpose, parcel, where=f"shares for '{opening.receiver}'")
        except MessageRejected as error:
            self._records.lied(entry, str(error))
            return
        why = f"it complains of '{device}', whose shares are in order"
        if self._records.is_signed:
            self._records.lied(receiver, why)
        else:  # whoever carried the mail may have changed it
            self.leave_out(*here, opening.receiver, why)

    def _parcel(self, round_index: int, attempt: int, sender: str, receiver: str) -> bytes:
        return self._records.said(round_index, attempt, "shares", Shares)[sender].sealed[receiver]

    def _entry(self, round_index: int, attempt: int, device: str) -> Assignment:
        entry = self._records.assignment(round_index, attempt, device)
        assert entry is not None
        return entry
