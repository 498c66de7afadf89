"""What devices say about their masks: checked, written to the ledger, answered from it. One handler per message kind.

The handler decides nothing: when a roster is complete, who is too late and what is revealed is
:mod:`coordinator.rounds.stages.secure_aggregation`'s, and in the ledger before it is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.privacy.masking_disputes import MaskingDisputes
from coordinator.privacy.masking_records import MaskingRecords
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import Envelope
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import KEY_BYTES, Checked, Exclude, Excluded, Keys, Mail, Proceed, Revealed, Roster, Shares
from edge.masking.commitments import DIGEST_BYTES, PAIR_BYTES, PARCEL_BYTES, digest_of, digests_in
from edge.masking.keys import check_public
from edge.serving.publisher import Publisher


class MaskingHandler(MaskingRecords):
    """Handles what devices say of masks; all it knows is in the ledger.

    Whoever says what cannot be, or gives others what they cannot use, is named, with why, in the ledger: a lie. So that
    it is the liar and nobody else, shares come with their digests, and who is complained of opens what it gave
    (:mod:`coordinator.privacy.masking_disputes`).

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
        super().__init__(federation, ledger, publisher, notify, say)
        self.handlers: dict[str, Callable[[str, Envelope], None]] = {
            "keys": self._keys,
            "shares": self._shares,
            "checked": self._checked,
            "revealed": self._revealed,
            "excluded": self._excluded,
        }
        self._read: tuple[int, int] | None = None
        self._shared: dict[str, Shares] = {}
        self.disputes = MaskingDisputes(self)
        self.handlers |= self.disputes.handlers

    def send_rosters(self, round_index: int, attempt: int, devices: Sequence[str] | None = None) -> None:
        """Tell the members, or some of them, who they mask with."""
        decided = self.roster(round_index, attempt)
        assert decided is not None
        members = self.members(round_index, attempt)
        for device in decided.devices if devices is None else devices:
            identity = self.identity(round_index, attempt, device)
            self.tell(device, "roster", Roster(identity, decided.threshold, members))

    def send_mail(self, round_index: int, attempt: int, devices: Sequence[str] | None = None) -> None:
        """Deliver the sealed shares to those they are for, or to some of them."""
        decided = self.mailed(round_index, attempt)
        assert decided is not None
        shares = self._shares_of(round_index, attempt)
        for device in decided.devices if devices is None else devices:
            identity = self.identity(round_index, attempt, device)
            boxes = {sender: shares[sender].sealed[device] for sender in decided.devices if sender != device}
            self.tell(device, "mail", Mail(identity, boxes))

    def send_proceeds(self, round_index: int, attempt: int, devices: Sequence[str] | None = None) -> None:
        """Tell those that may mask their updates, or some of them, that they may."""
        decided = self.proceeding(round_index, attempt)
        assert decided is not None
        for device in decided.devices if devices is None else devices:
            self.tell(device, "proceed", Proceed(self.identity(round_index, attempt, device)))

    def send_reveals(self, round_index: int, attempt: int, devices: Sequence[str]) -> None:
        """Ask ``devices`` for what takes the masks off."""
        reveal = self.revealing(round_index, attempt)
        assert reveal is not None
        for device in devices:
            identity = self.identity(round_index, attempt, device)
            self.tell(device, "reveal", msgspec.structs.replace(reveal, assignment_id=identity))

    def send_excludes(self, round_index: int, attempt: int, devices: Sequence[str]) -> None:
        """Ask ``devices`` for the masks they share with those that are left out of the sum, and what comes before."""
        self.send_reveals(round_index, attempt, devices)
        for device in devices:
            exclude = Exclude(self.identity(round_index, attempt, device), self.excluding(round_index, attempt))
            self.tell(device, "exclude", exclude)

    def _excluded(self, device: str, envelope: Envelope) -> None:
        excluded = envelope.read(Excluded)
        entry = self._ledger.assignments.find(excluded.assignment_id)
        if entry is None or entry.device != device or device not in self.counted(entry.round, entry.attempt):
            return
        asked = self.excluding(entry.round, entry.attempt)
        if not asked or set(excluded.seeds) != set(asked) or {*map(len, excluded.seeds.values())} != {KEY_BYTES}:
            raise MessageRejected(f"{len(excluded.seeds)} seeds of masks that are not those asked for")
        self._keep(entry, "excluded", excluded)

    def _checked(self, device: str, envelope: Envelope) -> None:
        checked = envelope.read(Checked)
        entry = self.open(device, checked.assignment_id)
        mailed = None if entry is None else self.mailed(entry.round, entry.attempt)
        if entry is None or mailed is None or device not in mailed.devices:
            return
        self._keep(entry, "checked", checked)
        self.disputes.remind(device, entry.round, entry.attempt)
        proceeding = self.proceeding(entry.round, entry.attempt)
        if proceeding is not None and device in proceeding.devices:
            self.send_proceeds(entry.round, entry.attempt, [device])

    def _keys(self, device: str, envelope: Envelope) -> None:
        keys = envelope.read(Keys)
        entry = self.open(device, keys.assignment_id)
        if entry is None:
            return
        decided = self.roster(entry.round, entry.attempt)
        if not self._has_said(entry, "keys"):
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
        entry = self.open(device, shares.assignment_id)
        decided = None if entry is None else self.roster(entry.round, entry.attempt)
        if entry is None or decided is None:
            return
        if {*shares.sealed, device} != set(decided.devices) or device in shares.sealed:
            raise MessageRejected(f"shares for {len(shares.sealed)} devices that are not the roster's others")
        sizes = ({*map(len, shares.sealed.values())}, len(shares.own), len(shares.self_mask))
        if not self._has_said(entry, "shares") and sizes != ({PARCEL_BYTES}, PAIR_BYTES, DIGEST_BYTES):
            self.lied(entry, f"shares and digests of {sizes} bytes, {PARCEL_BYTES} a member expected")
            return
        self._keep(entry, "shares", shares)
        mailed = self.mailed(entry.round, entry.attempt)
        if mailed is not None and device in mailed.devices:
            self.send_mail(entry.round, entry.attempt, [device])
            self.disputes.remind(device, entry.round, entry.attempt)

    def _revealed(self, device: str, envelope: Envelope) -> None:
        revealed = envelope.read(Revealed)
        entry = self._ledger.assignments.find(revealed.assignment_id)
        reveal = None if entry is None else self.revealing(entry.round, entry.attempt)
        if entry is None or entry.device != device or reveal is None or device not in reveal.reported:
            return
        if self.helpers(entry.round, entry.attempt) or self._has_said(entry, "revealed"):
            return  # they are chosen, and more shares must not change what the sum is made with
        asked = (set(reveal.reported), set(reveal.dropped))
        if (set(revealed.self_masks), set(revealed.masking_keys)) != asked:
            count = len(revealed.self_masks) + len(revealed.masking_keys)
            raise MessageRejected(f"{count} shares that are not those asked for")
        shares = self._shares_of(entry.round, entry.attempt)
        for kind, told in enumerate((revealed.self_masks, revealed.masking_keys)):
            for giver, share in told.items():
                digests = shares[device].own if giver == device else digests_in(shares[giver].sealed[device])
                if digest_of(share) != digests[kind * DIGEST_BYTES :][:DIGEST_BYTES]:
                    self.lied(entry, f"it tells another share of '{giver}' than it was given")
                    return
        self._keep(entry, "revealed", revealed)

    def _shares_of(self, round_index: int, attempt: int) -> dict[str, Shares]:
        """Device -> the shares it gave; after the mail is decided on those stay, and are read once for an attempt."""
        if self._read != (round_index, attempt):
            self._shared = self.said(round_index, attempt, "shares", Shares)
            self._read = (round_index, attempt)
        return self._shared

    def _has_said(self, entry: Assignment, kind: str) -> bool:
        return self._ledger.masking.find(entry.round, entry.attempt, entry.device, kind) is not None

    def _keep(self, entry: Assignment, kind: str, body: msgspec.Struct) -> None:
        """The first of a kind stays; devices repeat themselves."""
        self.record(entry.round, entry.attempt, entry.device, kind, encode_msgpack(body))
