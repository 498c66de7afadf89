"""Which of a round's updates count, and what of them: between the ledger's records and a method's aggregation.

Participants are chosen once, before aggregation, and are in the ledger from then on; :func:`updates_of` gives the same
stream for them however often an interrupted aggregation is repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.choice import chosen_rule
from coordinator.aggregation.parts import FiniteTensors
from coordinator.exporting.model_form import whole_windows
from coordinator.ledger.records import RecordedUpdate
from coordinator.rounds.federation import Federation
from coordinator.submodels.packed_tensors import order_masks
from coordinator.submodels.record import cut_from_json
from coordinator.submodels.values import Update
from edge.contracts.packing import unpacked
from edge.contracts.plan import read_order
from edge.contracts.precision import restored
from edge.contracts.tensor_file import decode_tensors
from export.forms.step_form import form_named
from profiles.bounds import MOST_EXAMPLES

if TYPE_CHECKING:
    import numpy as np


def rule_of(federation: Federation) -> Rule | None:
    """The run's aggregation rule, its files beside the blobs; None for the method's own mean."""
    return chosen_rule(federation.config.aggregation, federation.blobs.root / "incoming")


def updates_of(federation: Federation, recorded: Sequence[RecordedUpdate]) -> Iterator[Update]:
    """The updates behind ``recorded``, one at a time."""
    limit = examples_limit([r.report.num_examples for r in recorded], federation.config.defences.examples_factor)

    def read(entry: RecordedUpdate) -> Update:
        update = federation.devices.update(federation, entry)
        return replace(update, num_examples=min(limit, update.num_examples))

    # While one is summed, the next one is checked and read.
    with ThreadPoolExecutor(1, thread_name_prefix="updates") as reader:
        following = [reader.submit(read, entry) for entry in recorded[:1]]
        for index in range(len(recorded)):
            update = following.pop().result()
            following += [reader.submit(read, entry) for entry in recorded[index + 1 : index + 2]]
            yield update
            federation.on_point(f"aggregated-{index}")


def stored_update(federation: Federation, entry: RecordedUpdate) -> Update:
    """The update behind ``entry``, from the blobs."""
    assignment = entry.assignment
    order = read_order(assignment.order)
    masks = order_masks(federation.blobs, order)
    tensors = unpacked(
        sent_tensors(federation, entry), masks, where=f"device {assignment.device}, round {assignment.round}"
    )
    if order.precision == "fp32":
        tensors = FiniteTensors(tensors)  # as of its recording, and the bytes are those
    return Update(
        device=assignment.device,
        level=next(level for level in federation.method.levels() if level.name == assignment.level),
        cut=cut_from_json(assignment.cut),
        tensors=tensors,
        num_examples=whole_windows(federation.config, form_named(assignment.form), entry.report.num_examples),
        labels=entry.report.labels if order.report_labels else None,
    )


def examples_limit(counts: Sequence[int], factor: float) -> int:
    """The most examples an update of a cohort may stand for: ``factor`` times the median; no limit when that is 0."""
    return max(1, int(statistics.median(counts) * factor)) if factor and counts else MOST_EXAMPLES


def sent_tensors(federation: Federation, entry: RecordedUpdate) -> Mapping[str, np.ndarray]:
    """What a device sent, in fp32, masked tensors as kept values."""
    order = read_order(entry.assignment.order)
    where = f"device {entry.assignment.device}, round {entry.assignment.round}"
    tensors = decode_tensors(federation.blobs.check(entry.update_digest, where=where), where=where)
    return tensors if order.precision == "fp32" else restored(tensors, origin_of(federation, entry), where=where)


def origin_of(federation: Federation, entry: RecordedUpdate) -> Mapping[str, np.ndarray]:
    """The weights an update was trained from, as they were sent."""
    where = f"device {entry.assignment.device}, round {entry.assignment.round}, its weights"
    digest = read_order(entry.assignment.order).weights.digest
    return decode_tensors(federation.blobs.check(digest, where=where), where=where)
