"""Sums of masked updates without their masks, from what devices told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.ledger.records import Assignment, Round
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.rounds.federation import Federation
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import Masking, Reveal, Revealed, Shares
from edge.contracts.tensor_file import read_tensor_file
from edge.masking.commitments import digest_of
from edge.masking.keys import agree, pair_purpose, public_of
from edge.masking.shares import recover

if TYPE_CHECKING:
    import numpy as np


class SharesDisagree(MessageRejected):
    """What ``giver`` gave shares of is not what it committed itself to."""

    def __init__(self, giver: str, why: str) -> None:
        super().__init__(f"its shares give another {why} than it committed itself to")
        self.giver = giver


def entries_of(federation: Federation, current: Round) -> dict[str, Assignment]:
    """Device -> what it was given in the attempt."""
    return {e.device: e for e in federation.ledger.assignments.of_attempt(current.round, current.attempt)}


def weight_of(federation: Federation, current: Round, reveal: Reveal, masking: Masking) -> int:
    """What the sum stands for, as was reported: the masked weights are whatever each device made them."""
    if not masking.is_weighted:
        return len(reveal.reported)
    updates = federation.ledger.updates.of_attempt(current.round, current.attempt)
    return sum(
        min(masking.max_weight, u.report.num_examples) for u in updates if u.assignment.device in reveal.reported
    )


def sums_of(
    federation: Federation, handler: MaskingHandler, current: Round, reveal: Reveal, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """The sums of ``names`` over all that reported, without masks: int64, one pass over the updates."""
    import numpy as np

    from edge.masking.numbers import add_masks, signed

    added, removed = seeds_of(federation, handler, current, reveal)
    updates = {u.assignment.device: u for u in federation.ledger.updates.of_attempt(current.round, current.attempt)}
    totals: dict[str, np.ndarray] = {}
    for device in reveal.reported:
        tensors = read_tensor_file(federation.blobs.path(updates[device].update_digest), where=f"device {device}")
        for name in names:
            value = np.ascontiguousarray(tensors[name]).view(np.uint32)
            totals[name] = totals[name] + value if name in totals else value.copy()
    for name, total in totals.items():
        add_masks(total, name, added, sign=-1)
        add_masks(total, name, removed, sign=1)
    return {name: signed(total) for name, total in totals.items()}


def seeds_of(
    federation: Federation, handler: MaskingHandler, current: Round, reveal: Reveal
) -> tuple[list[bytes], list[bytes]]:
    """Seeds of the masks that were added to the sum and do not cancel, and of those that were taken off it.

    Raises:
        SharesDisagree: a device gave shares of something else than it committed itself to.
    """
    here = (current.round, current.attempt)
    mailed, members = handler.mailed(*here), handler.members(*here)
    assert mailed is not None
    number = {member.device: index + 1 for index, member in enumerate(members)}
    public = {member.device: member.masking for member in members}
    identity = {d: handler.identity(*here, d) for d in public}
    given, helpers = handler.said(*here, "shares", Shares), handler.helpers(*here)
    revealed = {d: told for d, told in handler.said(*here, "revealed", Revealed).items() if d in helpers}
    added: list[bytes] = []
    removed: list[bytes] = []
    for device in reveal.reported:
        shares = {number[helper]: told.self_masks[device] for helper, told in revealed.items()}
        secret = _recovered(device, shares, mailed.threshold)
        if digest_of(secret) != given[device].self_mask:
            raise SharesDisagree(device, "self mask")
        added.append(secret)
    for gone in reveal.dropped:
        shares = {number[helper]: told.masking_keys[gone] for helper, told in revealed.items()}
        private = _recovered(gone, shares, mailed.threshold)
        if public_of(private) != public[gone]:
            raise SharesDisagree(gone, "masking key")
        for device in reveal.reported:
            seed = agree(private, public[device], pair_purpose(identity[gone], identity[device]))
            (added if device < gone else removed).append(seed)
    return added, removed


def _recovered(giver: str, shares: dict[int, bytes], threshold: int) -> bytes:
    """The secret; every share is the one that ``giver`` gave."""
    try:
        return recover(shares, threshold)
    except MessageRejected as error:
        raise SharesDisagree(giver, "secret") from error
