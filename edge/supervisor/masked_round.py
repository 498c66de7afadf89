"""A device's side of masked updates: its keys, the shares it gave and got, and the one answer it gives when asked.

Everything is on disk before it is sent, so an agent that was killed says the same again: never two sets of keys, two
masks or two answers for one assignment. Masks are taken off once for a model: of two sums of one model the difference
could be a single update. Numbers are masked in the trainer (:mod:`edge.masking.numbers`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from edge.contracts.envelope import Envelope
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import (
    Checked,
    Complaint,
    Dispute,
    Exclude,
    Excluded,
    Keys,
    Mail,
    Opening,
    Proceed,
    Reveal,
    Revealed,
    Roster,
    Shares,
)
from edge.contracts.messages import Refuse
from edge.contracts.plan import WorkOrder
from edge.contracts.signing import device_masking_text
from edge.identity.credentials import CertificateFiles
from edge.identity.own_signature import OwnSignature
from edge.identity.trust import Trust
from edge.masking.commitments import digest_of, digests_of, key_of, packed, unpacked
from edge.masking.keys import agree, new_private, pair_purpose, public_of, share_purpose
from edge.masking.seeds import MaskSeeds
from edge.masking.shares import SHARE_BYTES, split
from edge.supervisor.assignment import Assignment, order_identity
from edge.supervisor.cohort_size import check_cohort
from edge.supervisor.masking_state import MaskingFiles, MaskingState, check_exclude, check_reveal, check_roster
from edge.supervisor.settings import AgentSettings
from edge.transfer.uploader import REPEAT_S
from edge.transport.base import Qos

log = logging.getLogger("apportion.agent")

KINDS = ("roster", "mail", "dispute", "proceed", "reveal", "exclude")
"""What the coordinator says of it."""

TOLD = "masks-told"
"""The code of a refusal: masks were taken off a sum of these weights before."""


class SendSigned(Protocol):
    """Publishes a message, signed by ``sign``; without it as it is."""

    def __call__(
        self, kind: str, body: Any, qos: Qos, message_id: str | None, sign: Callable[[bytes], bytes] | None
    ) -> None: ...


class Masker:
    """The masked assignments of this device, one file each below ``folder``, and the models it took masks off for.

    Args:
        trust: what the coordinator says has to be signed by one of its keys; None: by nobody.
        certificate: its key signs what this device says; None: nothing does.
        min_cohort: what the owner's policy says: no sum of fewer devices is masked for, or unmasked.
    """

    def __init__(
        self,
        folder: Path,
        send: SendSigned,
        trust: Trust | None = None,
        certificate: CertificateFiles | None = None,
        min_cohort: int = 0,
    ) -> None:
        self._files = MaskingFiles(folder)
        self._send = send
        self._sign = OwnSignature.of(certificate)
        self._trust = trust
        self._min_cohort = min_cohort
        self._state: MaskingState | None = None
        self._repeat_at = 0.0
        self._is_news = False

    @classmethod
    def of(cls, settings: AgentSettings, folder: Path, send: SendSigned) -> Masker:
        """That of an agent."""
        return cls(folder, send, settings.trust, settings.certificate, settings.min_cohort)

    def _begin(self, order: WorkOrder) -> None:
        """Keys of the order's own; those of orders before it are forgotten."""
        self._state = self._files.load(order.assignment_id)
        if self._state is None or self._state.order != order_identity(order):
            self._files.forget()
            self._save(
                MaskingState(
                    assignment_id=order.assignment_id,
                    federation=order.federation,
                    run=order.run,
                    order=order_identity(order),
                    weights=order.weights.digest,
                    round=order.round,
                    attempt=order.attempt,
                    device=order.device,
                    sharing_key=new_private(),
                    masking_key=new_private(),
                    self_mask=new_private(),
                )
            )
        self._repeat_at = 0.0

    def refusal(self, taken: Assignment) -> Refuse | None:
        """Of an order whose masks would be the second to be taken off for its weights; None for others."""
        order = taken.order
        if order.masking is None or order.weights.digest not in self._files.told():
            return None
        return taken.refusal(
            TOLD,
            f"masks were taken off a sum for the weights {order.weights.digest[:12]} before, in this run or another; "
            "order others: a new run begins from others with another $.federation.seed or $.model.weights",
        )

    def is_ready(self, order: WorkOrder) -> bool:
        """Whether ``order`` may be trained: it is not masked, or its masks are agreed on."""
        state = self._state
        return order.masking is None or (
            state is not None and state.assignment_id == order.assignment_id and state.proceeds
        )

    def lets(self, work: Assignment) -> bool:
        """Whether ``work`` is ready; it then has the seeds of its masks."""
        if not self.is_ready(work.order):
            return False
        work.masks = self.seeds(work.order)
        return True

    def seeds(self, order: WorkOrder) -> MaskSeeds | None:
        """Of the masks on the order's update; None for one that is not masked."""
        if order.masking is None:
            return None
        state = self._state
        assert state is not None
        assert state.roster is not None
        assert state.received is not None
        pairs = {
            m.device: agree(state.masking_key, m.masking, pair_purpose(state.assignment_id, state.id_of(m.device)))
            for m in state.roster.members
            if m.device in state.received
        }
        later = [seed for device, seed in sorted(pairs.items()) if device > state.device]
        earlier = [seed for device, seed in sorted(pairs.items()) if device < state.device]
        return MaskSeeds((state.self_mask, *later), tuple(earlier))

    def tick(self, order: WorkOrder, now: float) -> None:
        """Begin with the masks of ``order``, when it has some, and say again what has no answer yet."""
        if order.masking is not None and (self._state is None or self._state.assignment_id != order.assignment_id):
            try:
                self._begin(order)
            except OSError as error:  # a full disk: keys that would be lost are not said, the next tick tries again
                self._state = None
                log.warning("no keys for assignment %s yet: %s", order.assignment_id[:12], error)
        state = self._state
        if state is None or state.proceeds or now < self._repeat_at:
            return
        self._repeat_at = now + REPEAT_S
        if state.opening is not None:
            self._say(state, "opening", state.opening)
        elif state.complaint is not None:
            self._say(state, "complaint", state.complaint)
        elif state.received is not None:
            self._say(state, "checked", Checked(state.assignment_id))
        elif state.shares is not None:
            self._say(state, "shares", state.shares)
        else:
            keys = Keys(state.assignment_id, public_of(state.sharing_key), public_of(state.masking_key))
            self._say(state, "keys", keys)

    def _say(self, state: MaskingState, kind: str, body: msgspec.Struct) -> None:
        sign = self._sign
        signed = None if sign is None else lambda packed: sign(device_masking_text(state.run, kind, packed))
        self._send(kind, body, 1, None, signed)

    def take_news(self) -> bool:
        """Whether masks were agreed on since the last call."""
        is_news, self._is_news = self._is_news, False
        return is_news

    def received(self, envelope: Envelope) -> bool:
        """Take a message; False when it is none of :data:`KINDS`.

        Raises:
            MessageRejected: it does not fit what was said before; nothing changes. Also SignatureRejected.
        """
        if envelope.kind not in KINDS:
            return False
        if self._trust is not None:
            self._trust.check_masking(envelope.kind, bytes(envelope.body), envelope.signature)
        if envelope.kind == "roster":
            self._roster(envelope.read(Roster))
        elif envelope.kind == "mail":
            self._mail(envelope.read(Mail))
        elif envelope.kind == "dispute":
            self._dispute(envelope.read(Dispute))
        elif envelope.kind == "proceed":
            self._proceed(envelope.read(Proceed))
        elif envelope.kind == "reveal":
            self._reveal(envelope.read(Reveal))
        else:
            self._exclude(envelope.read(Exclude))
        self._repeat_at = 0.0
        return True

    def _roster(self, roster: Roster) -> None:
        state = self._known(roster.assignment_id)
        if state.roster is not None:
            if state.roster != roster:
                raise MessageRejected("another roster than the first; shares are given once")
            return
        check_roster(roster, state)
        check_cohort(state.assignment_id, len(roster.members), self._min_cohort, self._send)
        count, threshold = len(roster.members), roster.threshold
        pairs = zip(split(state.self_mask, threshold, count), split(state.masking_key, threshold, count), strict=True)
        parcels, ephemeral, own = {}, {}, b""
        for member, (mask, key) in zip(roster.members, pairs, strict=True):
            if member.device == state.device:
                own = mask + key
                continue
            purpose = share_purpose(state.assignment_id, state.id_of(member.device))
            ephemeral[member.device] = new_private()
            parcels[member.device] = packed(ephemeral[member.device], member.sharing, purpose, mask + key)
        shares = Shares(state.assignment_id, parcels, digests_of(own), digest_of(state.self_mask))
        self._save(msgspec.structs.replace(state, roster=roster, shares=shares, own=own, ephemeral=ephemeral))

    def _mail(self, mail: Mail) -> None:
        state = self._known(mail.assignment_id)
        if state.complaint is not None or state.opening is not None:
            return
        if state.received is not None:
            if set(state.received) != set(mail.sealed):
                raise MessageRejected("other mail than the first; masks are agreed on once")
            return
        if state.roster is None or len(mail.sealed) + 1 < state.roster.threshold:
            raise MessageRejected(f"mail of {len(mail.sealed)} devices before a roster, or of too few")
        check_cohort(state.assignment_id, len(mail.sealed) + 1, self._min_cohort, self._send)
        others = {member.device for member in state.roster.members} - {state.device}
        opened_shares = {}
        for sender, parcel in mail.sealed.items():
            if sender not in others:
                raise MessageRejected(f"mail of '{sender[:64]}', who is not in the roster")
            purpose, where = share_purpose(state.id_of(sender), state.assignment_id), f"device {sender}"
            try:
                opened_shares[sender] = unpacked(state.sharing_key, key_of(parcel), purpose, parcel, where=where)
            except MessageRejected:
                complaint = Complaint(state.assignment_id, sender)
                self._save(msgspec.structs.replace(state, complaint=complaint, sharing_key=b""))
                raise
        self._save(msgspec.structs.replace(state, received=opened_shares, sharing_key=b""))

    def _dispute(self, dispute: Dispute) -> None:
        """Open one parcel, which says nothing of an update: none was masked, and with these secrets none will be."""
        state = self._known(dispute.assignment_id)
        opening = state.opening
        if opening is None:
            if state.proceeds or dispute.receiver not in state.ephemeral:
                raise MessageRejected(f"'{dispute.receiver[:64]}' has no shares from here to complain of now")
            opening = Opening(state.assignment_id, dispute.receiver, state.ephemeral[dispute.receiver])
            gone = msgspec.structs.replace(state, sharing_key=b"", masking_key=b"", self_mask=b"", own=b"")
            self._save(msgspec.structs.replace(gone, ephemeral={}, received=None, opening=opening))
        elif opening.receiver != dispute.receiver:
            raise MessageRejected("shares were opened for another device before; no more are in one attempt")
        self._say(state, "opening", opening)

    def _proceed(self, proceed: Proceed) -> None:
        state = self._known(proceed.assignment_id)
        if state.proceeds:
            return
        if state.received is None or state.complaint is not None:
            raise MessageRejected("masks are not agreed on here; nothing is masked")
        self._save(msgspec.structs.replace(state, proceeds=True, ephemeral={}))
        self._is_news = True

    def _reveal(self, reveal: Reveal) -> None:
        state = self._known(reveal.assignment_id)
        if state.revealed is not None:
            if state.reveal != reveal:
                raise MessageRejected("another list of devices than the first; no device's two secrets are told")
            self._say(state, "revealed", state.revealed)
            return
        if state.roster is None or state.received is None or not state.proceeds:
            raise MessageRejected("shares are asked for before they were given")
        held = {**state.received, state.device: state.own}
        check_reveal(reveal, set(held), state.roster.threshold)
        check_cohort(state.assignment_id, len(reveal.reported), self._min_cohort)
        # Of the same assignment: this process was killed after it remembered, and nothing was said.
        if self._files.told().setdefault(state.weights, state.assignment_id) != state.assignment_id:
            raise MessageRejected(f"masks were taken off a sum for the weights {state.weights[:12]} before")
        self._files.tell(state)
        revealed = Revealed(
            state.assignment_id,
            {device: held[device][:SHARE_BYTES] for device in reveal.reported},
            {device: held[device][SHARE_BYTES:] for device in reveal.dropped},
        )
        told = msgspec.structs.replace(state, reveal=reveal, revealed=revealed, self_mask=b"", own=b"")
        if not self._are_both_signed:
            told = msgspec.structs.replace(told, masking_key=b"")
        self._save(msgspec.structs.replace(told, received=dict.fromkeys(state.received, b""), shares=None))
        self._say(state, "revealed", revealed)

    @property
    def _are_both_signed(self) -> bool:
        """Whether nobody between can have a member found out that gave what it should."""
        return self._trust is not None and self._sign is not None

    def _exclude(self, exclude: Exclude) -> None:
        state = self._known(exclude.assignment_id)
        excluded = state.excluded
        if excluded is None:
            if not self._are_both_signed:
                raise MessageRejected("masks with single devices are told where both sides sign, nowhere else")
            check_cohort(state.assignment_id, check_exclude(exclude, state), self._min_cohort)
            assert state.roster is not None
            seeds = {
                m.device: agree(state.masking_key, m.masking, pair_purpose(state.assignment_id, state.id_of(m.device)))
                for m in state.roster.members
                if m.device in exclude.devices
            }
            excluded = Excluded(state.assignment_id, seeds)
            self._save(msgspec.structs.replace(state, excluded=excluded, masking_key=b""))
        elif set(excluded.seeds) != set(exclude.devices):
            raise MessageRejected("masks with other devices were told before; once for an assignment")
        self._say(state, "excluded", excluded)

    def _known(self, identity: str) -> MaskingState:
        if self._state is not None and self._state.assignment_id == identity:
            return self._state
        state = self._files.load(identity)
        if state is None:
            raise MessageRejected(f"assignment {identity[:12]} has no masks here; it is over")
        return state

    def _save(self, state: MaskingState) -> None:
        self._files.save(state)
        if self._state is None or state.assignment_id == self._state.assignment_id:
            self._state = state
