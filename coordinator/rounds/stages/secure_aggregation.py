"""A round of masked updates, from the order to the sum: who masks together, who is too late, what is revealed.

Every decision is a row of the ledger before anyone hears of it, so a coordinator that was killed says the same again.
Only the sum over all that reported is ever unmasked, and it is not unless enough of them help; nobody helps twice for
one model. Who lies is named (:mod:`coordinator.privacy.masking_handler`) and takes part no more.

Source: Bonawitz et al., CCS 2017, figure 4; parties are taken to keep to the protocol (docs/privacy.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from coordinator.config.run_config import RunConfig
from coordinator.ledger.records import Assignment, Round
from coordinator.privacy.masking_handler import COORDINATOR, Decided, MaskingHandler
from coordinator.rounds.collecting import dismiss
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.remote_devices import MqttDevices
from coordinator.rounds.stages.differential_privacy import noise_of, noisy_mean
from coordinator.submodels.packed_tensors import order_masks
from coordinator.submodels.record import cut_from_json
from coordinator.submodels.values import State, Update
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import MessageRejected, PlanError
from edge.contracts.masking import MAX_COHORT, WEIGHT, Masking, Reveal, Revealed, Shares
from edge.contracts.packing import KEPT, unpacked
from edge.contracts.plan import WorkOrder, read_order
from edge.contracts.tensor_file import read_tensor_file
from edge.masking.commitments import digest_of
from edge.masking.keys import agree, pair_purpose, public_of
from edge.masking.shares import recover

if TYPE_CHECKING:
    import numpy as np

KEYS_BY = 0.25
"""Share of a round's time after which those without keys are left out; a device needs them before it trains."""

SHARES_BY = 0.4
"""Likewise for the sealed shares."""

REVEAL_S = 30.0
"""How long the devices that reported are waited for to take the masks off."""

LEAST = 3
"""Devices of a masked sum: of two, each knows the other's update from the sum and its own."""

MOST_OF_MEDIAN = 16
"""An update weighs at most so many times the median of its cohort: the sum's quantum grows with the largest weight, and
nobody may make it so coarse by a word that nothing moves."""


class SecureAggregation(RoundStage):
    """Sums of masked updates, in a run with ``[privacy] secure-aggregation``."""

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return config.privacy.secure_aggregation

    def ended(self, federation: Federation) -> None:
        """Forget what devices said of their masks; who lied is kept."""
        federation.ledger.masking.drop(federation.config.federation.rounds + 1)

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        """Those that never lied about their masks, and were not asked to take any off for this model before."""
        masking = federation.ledger.masking
        reveals = [
            decode_msgpack(row, Reveal, limit=MAX_MESSAGE_BYTES) for row in masking.of_round(round_index, "reveal")
        ]
        asked = {device for reveal in reveals for device in reveal.reported}
        if again := sorted(asked & set(devices)):
            federation.progress.say(
                f"round {round_index + 1}: {', '.join(again)} were asked to unmask a sum of this model before, others "
                "have to take part"
            )
        return [device for device in devices if device not in asked | masking.liars()]

    def assignments(self, federation: Federation, assignments: list[Assignment]) -> list[Assignment]:
        """The planned ``assignments`` with orders for masked updates.

        Raises:
            PlanError: too few or too many devices, or devices that would send different tensors.
        """
        privacy = federation.config.privacy
        count = len(assignments)
        if not LEAST <= count <= MAX_COHORT:
            raise PlanError(f"{count} devices for a masked sum, {LEAST} to {MAX_COHORT} needed; change $.cohort.size")
        orders = [read_order(entry.order) for entry in assignments]
        first = orders[0]
        for order in orders:
            if (set(order.upload), order.weights.digest) != (set(first.upload), first.weights.digest):
                raise PlanError(
                    f"devices {first.device} and {order.device} would send different tensors, and only equal "
                    "ones have a masked sum; allow one runtime, or leave out $.privacy.secure-aggregation"
                )
        members = [federation.devices.member(order.device) for order in orders]
        counts = [member.hello.num_examples for member in members if member is not None] or [1]
        weight = 1 if privacy.noise_multiplier else max(1, min(max(counts), int(MOST_OF_MEDIAN * median(counts))))
        largest = (2**31 - 1) // count
        masking = Masking(
            step=privacy.mask_range * weight / largest,
            largest=largest,
            max_weight=weight,
            is_weighted=not privacy.noise_multiplier,
            clip_norm=privacy.clip_norm,
        )
        federation.ledger.masking.drop(first.round - 1)
        return [
            msgspec.structs.replace(entry, order=encode_msgpack(_masked(federation, entry, order, masking)))
            for entry, order in zip(assignments, orders, strict=True)
        ]

    def while_collecting(self, federation: Federation, current: Round) -> None:
        """Decide what can be decided of a collecting attempt: its roster when keys are in, its mail when shares are."""
        handler, here = _handler(federation), (current.round, current.attempt)
        if (mailed := handler.mailed(*here)) is not None:
            if lies := sorted({*federation.ledger.masking.of_attempt(*here, "lie")} & {*mailed.devices}):
                pending = federation.ledger.assignments.of_attempt(*here, "open", "accepted")
                dismiss(federation, pending, f"{', '.join(lies)} lied about masks")
            return
        kind = "keys" if handler.roster(*here) is None else "shares"
        decided = handler.roster(*here)
        entries = {e.device: e for e in federation.ledger.assignments.of_attempt(*here, "open", "accepted")}
        expected = list(entries) if decided is None else [d for d in decided.devices if d in entries]
        said = set(federation.ledger.masking.of_attempt(*here, kind))
        missing = [device for device in expected if device not in said]
        deadline = federation.config.cohort.deadline_s
        elapsed = deadline - federation.devices.clock.remaining_s()
        if missing and elapsed < deadline * (KEYS_BY if kind == "keys" else SHARES_BY):
            return
        chosen = tuple(device for device in expected if device in said)
        threshold = _threshold(federation, len(chosen)) if decided is None else decided.threshold
        if len(chosen) < max(LEAST, threshold):
            late, reason = list(entries.values()), f"{len(chosen)} devices can mask together, too few for a sum"
            dismiss(federation, late, reason)
            federation.progress.say(f"round {current.round + 1}: {reason}")
            return
        row = encode_msgpack(Decided(chosen, threshold))
        federation.ledger.masking.add(*here, COORDINATOR, "roster" if decided is None else "mail", row)
        late = [entry for device, entry in entries.items() if device not in chosen]
        dismiss(federation, late, f"no {kind} for the masks in time")
        if decided is None:
            handler.send_rosters(*here)
        else:
            handler.send_mail(*here)

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        """``reported`` once their masks can be taken off; nobody when they cannot, and the round is repeated."""
        handler, here = _handler(federation), (current.round, current.attempt)
        mailed = handler.mailed(*here)
        if mailed is None:
            return []
        reveal = handler.revealing(*here)
        if reveal is None:
            if set(federation.ledger.masking.of_attempt(*here, "lie")) & set(mailed.devices):
                federation.tries[current.round] -= 1  # whoever lies ends no run: each is out after one attempt
                return []
            present = tuple(d for d in reported if d in mailed.devices)
            ordered = len(federation.ledger.assignments.of_attempt(*here))
            if len(present) < max(mailed.threshold, LEAST, min(federation.config.cohort.min_reports, ordered)):
                return []
            reveal = Reveal("", present, tuple(d for d in mailed.devices if d not in present))
            federation.ledger.masking.add(*here, COORDINATOR, "reveal", encode_msgpack(reveal))
        if not _wait_for_shares(federation, current, handler, reveal, mailed.threshold):
            return []
        if not handler.helpers(*here):
            chosen = tuple(sorted(federation.ledger.masking.of_attempt(*here, "revealed"))[: mailed.threshold])
            federation.ledger.masking.add(*here, COORDINATOR, "helpers", encode_msgpack(Decided(chosen)))
        try:
            _seeds(federation, current, reveal)
        except SharesDisagree as error:
            handler.lied(_entries(federation, current)[error.giver], str(error))
            federation.tries[current.round] -= 1
            return []
        return list(reveal.reported)

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """One update in place of the attempt's masked ones: the mean of all, with the sum of their weights.

        With noise: the noisy mean of :mod:`coordinator.rounds.stages.differential_privacy`.
        """
        reveal = _handler(federation).revealing(current.round, current.attempt)
        assert reveal is not None
        entry = _entries(federation, current)[reveal.reported[0]]
        order, where = read_order(entry.order), f"round {current.round + 1}"
        assert order.masking is not None
        sums = _sums(federation, current, reveal, [*order.upload, WEIGHT])
        weight, found = _weight(federation, current, reveal, order.masking), int(sums.pop(WEIGHT)[0])
        if found != weight:
            federation.progress.say(f"{where}: weights of {found} in the sum, {weight} reported; reports count")
        sent = read_tensor_file(federation.blobs.path(order.weights.digest), where=where)
        moved = {name: value * order.masking.step for name, value in sums.items()}
        if not any(value.any() for value in sums.values()):
            federation.progress.say(f"{where}: nothing moved by a quantum; lower $.privacy.mask-range")
        if noise := noise_of(federation, current):
            weight, mean = 1, noisy_mean(noise, sent, moved)
        else:
            mean = {name: (sent[name] + value / weight).astype(sent[name].dtype) for name, value in moved.items()}
        levels = {level.name: level for level in federation.method.levels()}
        tensors = unpacked(mean, order_masks(federation.blobs, order), where=where)
        update = Update("masked sum", levels[entry.level], cut_from_json(entry.cut), tensors, weight)
        federation.on_point("aggregated-0")
        return iter([update])


def _masked(federation: Federation, entry: Assignment, order: WorkOrder, masking: Masking) -> WorkOrder:
    """Whole-number buffers, counts of batches, are left as they were sent."""
    manifest = federation.artifacts.load(entry.artifact_digest).manifest
    names = tuple(n for n in order.upload if manifest.tensor(n.removesuffix(KEPT)).dtype == "float32")
    return msgspec.structs.replace(order, upload=names, masking=masking)


def _wait_for_shares(
    federation: Federation, current: Round, handler: MaskingHandler, reveal: Reveal, threshold: int
) -> bool:
    """Ask those that reported until enough have answered; whether they have."""
    here = (current.round, current.attempt)
    give_up_at, asked_at = time.monotonic() + REVEAL_S, float("-inf")
    while True:
        answered = federation.ledger.masking.of_attempt(*here, "revealed")
        if len(answered) >= threshold:
            return True
        now = time.monotonic()
        if now >= give_up_at:
            federation.progress.say(
                f"round {current.round + 1}: {len(answered)} of {len(reveal.reported)} devices helped to unmask the "
                f"sum, {threshold} needed"
            )
            return False
        if now - asked_at > 5.0:
            handler.send_reveals(*here, [device for device in reveal.reported if device not in answered])
            asked_at = now
        federation.devices.wait(1.0)
        federation.on_point("collecting")


class SharesDisagree(MessageRejected):
    """What ``giver`` gave shares of is not what it committed itself to."""

    def __init__(self, giver: str, why: str) -> None:
        super().__init__(f"its shares give another {why} than it committed itself to")
        self.giver = giver


def _entries(federation: Federation, current: Round) -> dict[str, Assignment]:
    return {e.device: e for e in federation.ledger.assignments.of_attempt(current.round, current.attempt)}


def _weight(federation: Federation, current: Round, reveal: Reveal, masking: Masking) -> int:
    """What the sum stands for, as was reported: the masked weights are whatever each device made them."""
    if not masking.is_weighted:
        return len(reveal.reported)
    updates = federation.ledger.updates.of_attempt(current.round, current.attempt)
    return sum(
        min(masking.max_weight, u.report.num_examples) for u in updates if u.assignment.device in reveal.reported
    )


def _sums(federation: Federation, current: Round, reveal: Reveal, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The sums of ``names`` over all that reported, without masks: int64, one pass over the updates."""
    import numpy as np

    from edge.masking.numbers import add_masks, signed

    added, removed = _seeds(federation, current, reveal)
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


def _seeds(federation: Federation, current: Round, reveal: Reveal) -> tuple[list[bytes], list[bytes]]:
    """Seeds of the masks that were added to the sum and do not cancel, and of those that were taken off it.

    Raises:
        SharesDisagree: a device gave shares of something else than it committed itself to.
    """
    handler, here = _handler(federation), (current.round, current.attempt)
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


def _threshold(federation: Federation, count: int) -> int:
    share = federation.config.privacy.recovery_share
    return max(2, count // 2 + 1, math.ceil(share * count - 1e-9))


def _handler(federation: Federation) -> MaskingHandler:
    devices = federation.devices
    assert isinstance(devices, MqttDevices), "masks are agreed upon in messages"
    return MaskingHandler(
        federation.name, federation.ledger, devices.publisher, devices.notify, federation.progress.say
    )
