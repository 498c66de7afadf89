"""Sums of masked updates without their masks, from what devices told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.ledger.records import Assignment, Round
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.rounds.federation import Federation
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import Excluded, Masking, Revealed, Shares
from edge.contracts.tensor_file import read_tensor_file
from edge.masking.commitments import digest_of
from edge.masking.keys import agree, pair_purpose, public_of
from edge.masking.shares import recover

if TYPE_CHECKING:
    import numpy as np


def entries_of(federation: Federation, current: Round) -> dict[str, Assignment]:
    """Device -> what it was given in the attempt."""
    return {e.device: e for e in federation.ledger.assignments.of_attempt(current.round, current.attempt)}


def weight_of(federation: Federation, handler: MaskingHandler, current: Round, masking: Masking) -> int:
    """What the sum stands for, as was reported: the masked weights are whatever each device made them."""
    counted = handler.counted(current.round, current.attempt)
    if not masking.is_weighted:
        return len(counted)
    updates = federation.ledger.updates.of_attempt(current.round, current.attempt)
    return sum(min(masking.max_weight, u.report.num_examples) for u in updates if u.assignment.device in counted)


def sums_of(
    federation: Federation, handler: MaskingHandler, current: Round, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """The sums of ``names`` over all that count, without masks: int64, one pass over the updates."""
    import numpy as np

    from edge.masking.numbers import add_masks, signed

    added, removed = secrets_of(handler, current).seeds()
    updates = {u.assignment.device: u for u in federation.ledger.updates.of_attempt(current.round, current.attempt)}
    totals: dict[str, np.ndarray] = {}
    for device in handler.counted(current.round, current.attempt):
        tensors = read_tensor_file(federation.blobs.path(updates[device].update_digest), where=f"device {device}")
        for name in names:
            value = np.ascontiguousarray(tensors[name]).view(np.uint32)
            totals[name] = totals[name] + value if name in totals else value.copy()
    for name, total in totals.items():
        add_masks(total, name, added, sign=-1)
        add_masks(total, name, removed, sign=1)
    return {name: signed(total) for name, total in totals.items()}


@dataclass(frozen=True)
class Secrets:
    """What the helpers' shares give, and what takes the masks off a sum.

    Attributes:
        self_masks: of those that count, and masking_keys: of those that dropped out.
        misdealt: device -> why what it gave shares of is not what it committed itself to.
        told: by device that counts, the seeds of the masks it shares with those that are left out.
    """

    identity: Mapping[str, str]
    public: Mapping[str, bytes]
    self_masks: Mapping[str, bytes]
    masking_keys: Mapping[str, bytes]
    misdealt: Mapping[str, str]
    counted: tuple[str, ...]
    told: Mapping[str, Mapping[str, bytes]]

    def seeds(self) -> tuple[list[bytes], list[bytes]]:
        """Seeds of the masks that were added to the sum and do not cancel, and of those that were taken off it."""
        added = [self.self_masks[device] for device in self.counted]
        removed: list[bytes] = []
        for gone, private in self.masking_keys.items():
            for device in self.counted:
                seed = agree(private, self.public[device], pair_purpose(self.identity[gone], self.identity[device]))
                (added if device < gone else removed).append(seed)
        for device, seeds in self.told.items():
            for gone, seed in seeds.items():
                (added if device < gone else removed).append(seed)
        return added, removed


def secrets_of(handler: MaskingHandler, current: Round) -> Secrets:
    """What the chosen helpers' shares give; the same however often it is asked."""
    here = (current.round, current.attempt)
    mailed, reveal, members = handler.mailed(*here), handler.revealing(*here), handler.members(*here)
    assert mailed is not None
    assert reveal is not None
    number = {member.device: index + 1 for index, member in enumerate(members)}
    public = {member.device: member.masking for member in members}
    given, helpers = handler.said(*here, "shares", Shares), handler.helpers(*here)
    revealed = {d: told for d, told in handler.said(*here, "revealed", Revealed).items() if d in helpers}
    self_masks: dict[str, bytes] = {}
    masking_keys: dict[str, bytes] = {}
    misdealt: dict[str, str] = {}
    for device in reveal.reported:
        shares = {number[helper]: told.self_masks[device] for helper, told in revealed.items()}
        secret = _recovered(shares, mailed.threshold)
        if secret is None or digest_of(secret) != given[device].self_mask:
            misdealt[device] = "its shares give another self mask than it committed itself to"
        else:
            self_masks[device] = secret
    for device in reveal.dropped:
        shares = {number[helper]: told.masking_keys[device] for helper, told in revealed.items()}
        private = _recovered(shares, mailed.threshold)
        if private is None or public_of(private) != public[device]:
            misdealt[device] = "its shares give another masking key than it committed itself to"
        else:
            masking_keys[device] = private
    told = {device: said.seeds for device, said in handler.said(*here, "excluded", Excluded).items()}
    identity = {device: handler.identity(*here, device) for device in public}
    counted = handler.counted(*here)
    return Secrets(identity, public, self_masks, masking_keys, misdealt, counted, told)


def _recovered(shares: dict[int, bytes], threshold: int) -> bytes | None:
    """The secret; None for shares that do not belong together."""
    try:
        return recover(shares, threshold)
    except MessageRejected:
        return None
