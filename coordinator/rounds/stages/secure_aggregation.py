"""A round of masked updates, from the order to the sum: who masks together, who is too late, what is revealed.

Every decision is a row of the ledger before anyone hears of it, so a coordinator that was killed says the same again.
Only the sum over all that reported is ever unmasked, and it is not unless enough of them help; nobody helps twice for
one model. Who lies is named (:mod:`coordinator.privacy.masking_handler`) and takes part no more.

Source: Bonawitz et al., CCS 2017, figure 4; parties are taken to keep to the protocol (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from coordinator.config.run_config import RunConfig
from coordinator.ledger.records import Assignment, Round
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.privacy.masking_records import COORDINATOR
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.masking.agreement import (
    TOLD,
    able_devices,
    agree_on_masks,
    asked_before,
    left_out,
    reports_needed,
    told_before,
)
from coordinator.rounds.masking.silence import OF_ATTEMPTS, OFTEN, remember, silent_devices
from coordinator.rounds.masking.sums import entries_of, sums_of, weight_of
from coordinator.rounds.masking.unmasking import unmask
from coordinator.rounds.remote_devices import MqttDevices
from coordinator.rounds.stages.differential_privacy import noise_of, noisy_mean
from coordinator.submodels.packed_tensors import order_masks
from coordinator.submodels.record import cut_from_json
from coordinator.submodels.values import State, Update
from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import PlanError
from edge.contracts.masking import MAX_COHORT, WEIGHT, Masking, Reveal
from edge.contracts.packing import KEPT, unpacked
from edge.contracts.plan import WorkOrder, read_order
from edge.contracts.tensor_file import read_tensor_file

MOST_OF_MEDIAN = 16
"""An update weighs at most so many times the median of its cohort: the sum's quantum grows with the largest weight, and
nobody may make it so coarse by a word that nothing moves."""


class SecureAggregation(RoundStage):
    """Sums of masked updates, in a run with ``[privacy] secure-aggregation``."""

    def __init__(self) -> None:
        self._too_few = ""

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return config.privacy.secure_aggregation

    def ended(self, federation: Federation) -> None:
        """Forget what devices said of their masks; who lied is kept."""
        federation.ledger.masking.drop(federation.config.federation.rounds + 1)

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        """Those that never lied about their masks, and were not asked to take any off for this model before.

        Raises:
            PlanError: the devices that are here all said that another run had them do so.
        """
        self._too_few = ""
        if again := sorted(asked_before(federation, round_index) & set(devices)):
            federation.progress.say(
                f"round {round_index + 1}: {', '.join(again)} were asked to unmask a sum of this model before, others "
                "have to take part"
            )
        able = able_devices(federation, devices, round_index)
        silent = {device: back for device, back in silent_devices(federation, round_index).items() if device in able}
        others = sorted({*able} - {*left_out(federation, round_index), *silent})
        needed = reports_needed(federation)
        if len(able) < needed <= len(able) + len(again):
            self._too_few = _spent(round_index, again, len(able), needed)
            if federation.tries[round_index] > 1 and told_before(federation, round_index):
                raise PlanError(self._too_few)  # they were here, and asking them again changes nothing
        if len(others) < needed:
            return able
        for device, back in silent.items():
            federation.progress.say(
                f"round {round_index + 1}: {device} said nothing in {OFTEN} of {OF_ATTEMPTS} attempts and is left out "
                f"until round {back + 1}"
            )
        return others

    def check(self, federation: Federation, *, chosen: int, drawn_from: Sequence[str]) -> None:
        """Say what to change where too few devices are left that may unmask a sum of the round's model."""
        if self._too_few and chosen < reports_needed(federation):
            raise PlanError(self._too_few)

    def assignments(self, federation: Federation, assignments: list[Assignment]) -> list[Assignment]:
        """The planned ``assignments`` with orders for masked updates.

        Raises:
            PlanError: too few or too many devices, or devices that would send different tensors.
        """
        privacy = federation.config.privacy
        count = len(assignments)
        needed = reports_needed(federation, ordered=count)
        if not needed <= count <= MAX_COHORT:
            raise PlanError(
                f"{count} devices for a masked sum, {needed} to {MAX_COHORT} needed ($.cohort.size is "
                f"{federation.config.cohort.size}: docs/privacy.md); add devices, or begin a run with another size"
            )
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
        """Decide what can be decided of who masks together."""
        agree_on_masks(federation, _handler(federation), current)

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
            if handler.proceeding(*here) is None:
                return []
            _remember_silent(federation, current, handler, reported)
            present = tuple(d for d in reported if d in mailed.devices)
            ordered = len(federation.ledger.assignments.of_attempt(*here))
            if len(present) < (needed := max(mailed.threshold, reports_needed(federation, ordered=ordered))):
                federation.progress.say(
                    f"round {current.round + 1}: {len(present)} masked updates are here, {needed} needed so that their "
                    "sum tells of none"
                )
                return []
            reveal = Reveal("", present, tuple(d for d in mailed.devices if d not in present))
            federation.ledger.masking.add(*here, COORDINATOR, "reveal", encode_msgpack(reveal))
        if not unmask(federation, handler, current, reveal, mailed.threshold):
            return []
        return list(handler.counted(*here))

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """One update in place of the attempt's masked ones: the mean of all, with the sum of their weights.

        With noise: the noisy mean of :mod:`coordinator.rounds.stages.differential_privacy`.
        """
        handler = _handler(federation)
        first, *_ = handler.counted(current.round, current.attempt)
        entry = entries_of(federation, current)[first]
        order, where = read_order(entry.order), f"round {current.round + 1}"
        assert order.masking is not None
        sums = sums_of(federation, handler, current, [*order.upload, WEIGHT])
        weight, found = weight_of(federation, handler, current, order.masking), int(sums.pop(WEIGHT)[0])
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


def _spent(round_index: int, again: Sequence[str], able: int, needed: int) -> str:
    who = ", ".join(again[:5]) + (f" and {len(again) - 5} more" if len(again) > 5 else "")
    return (
        f"round {round_index + 1}: {who} unmasked a sum of its weights before, in this run or another, which "
        f"a device does once; {able} others are here, {needed} needed: begin a run with another $.federation.seed or "
        f"$.model.weights, or add {needed - able} devices and resume"
    )


def _masked(federation: Federation, entry: Assignment, order: WorkOrder, masking: Masking) -> WorkOrder:
    """Whole-number buffers, counts of batches, are left as they were sent."""
    manifest = federation.artifacts.load(entry.artifact_digest).manifest
    names = tuple(n for n in order.upload if manifest.tensor(n.removesuffix(KEPT)).dtype == "float32")
    return msgspec.structs.replace(order, upload=names, masking=masking)


def _remember_silent(federation: Federation, current: Round, handler: MaskingHandler, reported: list[str]) -> None:
    """Who was to mask its update and sent none; who may not, since it unmasked this model before, is none of them."""
    here = (current.round, current.attempt)
    proceeding = handler.proceeding(*here)
    excused = {e.device for e in federation.ledger.assignments.of_attempt(*here, "refused") if e.code == TOLD}
    devices = () if proceeding is None else proceeding.devices
    silent = {*devices} - {*reported} - excused - {*handler.rows(*here, "lie")}
    remember(federation, *here, sorted(silent), "no update")


def _handler(federation: Federation) -> MaskingHandler:
    devices = federation.devices
    assert isinstance(devices, MqttDevices), "masks are agreed upon in messages"
    return MaskingHandler(
        federation.name, federation.ledger, devices.publisher, devices.notify, federation.progress.say
    )
