"""Which of a round's updates count, and what of them: between the ledger's records and a method's aggregation.

Participants are chosen once, before aggregation, and are in the ledger from then on; :func:`updates_of` gives the same
stream for them however often an interrupted aggregation is repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.choice import chosen_rule
from coordinator.aggregation.parts import FiniteTensors
from coordinator.blob_marks import whole_file
from coordinator.defences.screening import screened
from coordinator.defences.standing import may_take_part
from coordinator.federation import Federation
from coordinator.ledger_records import RecordedUpdate, Round
from coordinator.methods.method import Update
from coordinator.packed_tensors import order_masks
from coordinator.publisher import read_order
from coordinator.submodels.record import cut_from_json
from coordinator.update_check import MAX_COUNT
from edge.contracts.packing import unpacked
from edge.contracts.precision import restored
from edge.contracts.tensor_file import decode_tensors

if TYPE_CHECKING:
    import numpy as np


def choose_participants(federation: Federation, attempt: Round) -> list[str]:
    """Devices whose recorded updates of ``attempt`` are to be summed, by id; those set aside are in quarantine."""
    recorded = screened(
        federation.ledger,
        federation.ledger.updates(attempt.round, attempt.attempt),
        federation.config.defences.quarantine_factor,
        read=lambda entry: (_tensors(federation, entry), _origin(federation, entry)),
        say=federation.progress.say,
        note=lambda entry, evidence: federation.progress.record(
            "quarantine", device=entry.assignment.device, round=entry.assignment.round, **evidence
        ),
    )
    return [update.assignment.device for update in recorded]


def not_barred(federation: Federation, devices: Sequence[str], round_index: int) -> list[str]:
    """Those of ``devices`` that may take part in round ``round_index``, by what came of their last updates."""
    defences, say = federation.config.defences, federation.progress.say
    return may_take_part(federation.ledger, defences, devices, round_index, say=say)


def counted(federation: Federation, attempt: Round, participants: Sequence[str]) -> list[RecordedUpdate]:
    """The records of the participants, in device-id order, the order they are summed in."""
    chosen = set(participants)
    recorded = federation.ledger.updates(attempt.round, attempt.attempt)
    return [update for update in recorded if update.assignment.device in chosen]


def rule_of(federation: Federation) -> Rule | None:
    """The run's aggregation rule, its files beside the blobs; None for the method's own mean."""
    return chosen_rule(federation.config.aggregation, federation.blobs.root / "incoming")


def updates_of(federation: Federation, recorded: Sequence[RecordedUpdate]) -> Iterator[Update]:
    """The updates behind ``recorded``, one at a time from disk."""
    levels = {level.name: level for level in federation.method.levels()}
    limit = examples_limit([r.report.num_examples for r in recorded], federation.config.defences.examples_factor)

    def read(entry: RecordedUpdate) -> Update:
        assignment = entry.assignment
        order = read_order(assignment.order)
        masks = order_masks(federation.blobs, order)
        where = f"device {assignment.device}, round {assignment.round}"
        tensors = unpacked(_tensors(federation, entry), masks, where=where)
        if order.precision == "fp32":
            tensors = FiniteTensors(tensors)  # as of its recording, and the bytes are those
        return Update(
            device=assignment.device,
            level=levels[assignment.level],
            cut=cut_from_json(assignment.cut),
            tensors=tensors,
            num_examples=min(limit, entry.report.num_examples),
            labels=entry.report.labels if order.report_labels else None,
        )

    # While one is summed, the next one is checked and read.
    with ThreadPoolExecutor(1, thread_name_prefix="updates") as reader:
        following = [reader.submit(read, entry) for entry in recorded[:1]]
        for index in range(len(recorded)):
            update = following.pop().result()
            following += [reader.submit(read, entry) for entry in recorded[index + 1 : index + 2]]
            yield update
            federation.on_point(f"aggregated-{index}")


def examples_limit(counts: Sequence[int], factor: float) -> int:
    """The most examples an update of a cohort may stand for: ``factor`` times the median; no limit when that is 0."""
    return max(1, int(statistics.median(counts) * factor)) if factor and counts else MAX_COUNT


def _tensors(federation: Federation, entry: RecordedUpdate) -> Mapping[str, np.ndarray]:
    """What a device sent, in fp32, masked tensors as kept values."""
    order = read_order(entry.assignment.order)
    where = f"device {entry.assignment.device}, round {entry.assignment.round}"
    tensors = decode_tensors(federation.blobs.check(entry.update_digest, where=where), where=where)
    return tensors if order.precision == "fp32" else restored(tensors, _origin(federation, entry), where=where)


def _origin(federation: Federation, entry: RecordedUpdate) -> Mapping[str, np.ndarray]:
    """The weights an update was trained from, as they were sent."""
    where = f"device {entry.assignment.device}, round {entry.assignment.round}, its weights"
    path = federation.blobs.path(read_order(entry.assignment.order).weights.digest)
    return decode_tensors(whole_file(path), where=where)
