"""The weights that an update was trained from, for whoever needs the difference; made again where they were damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from coordinator.exporting.base_file import base_key, stored_base
from coordinator.exporting.model_form import in_model_form
from coordinator.language.source import is_language
from coordinator.ledger.records import Assignment
from coordinator.rounds.aggregation import renew
from coordinator.rounds.cluster_models import cluster_state
from coordinator.rounds.control_variates import with_variates
from coordinator.rounds.federation import Federation
from coordinator.rounds.recovery import committed_state
from coordinator.submodels.packed_tensors import order_masks, split_tensors
from coordinator.submodels.values import State
from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.packing import unpacked
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import encode_tensors, read_tensor_file
from export.forms.step_form import form_named

if TYPE_CHECKING:
    import numpy as np


def origin_weights(federation: Federation, assignment: Assignment, *, where: str) -> dict[str, np.ndarray]:
    """Those that devices change, whole, by name.

    Raises:
        ArtifactCorrupt: they are damaged or gone, and so is the model they were cut from.
    """
    digest = assignment.weights_digest
    _check(federation, assignment, digest, where=f"{where}, its weights")
    sent = read_tensor_file(federation.blobs.path(digest), where=f"{where}, its weights")
    return dict(unpacked(sent, order_masks(federation.blobs, read_order(assignment.order)), where=where))


def restore_weights(federation: Federation, assignments: Iterable[Assignment]) -> None:
    """Have what ``assignments`` were trained from, weights and masks, whole in the store.

    What a disk damages after some devices have fetched it is deleted when another one says so; these have trained.

    Raises:
        ArtifactCorrupt: it cannot be made again.
    """
    seen = set[str]()
    for assignment in assignments:
        order = read_order(assignment.order)
        for digest in [ref.digest for ref in (order.weights, order.constants) if ref is not None]:
            if digest not in seen:
                seen.add(digest)
                _check(federation, assignment, digest, where=f"what {assignment.device} was sent")


def _check(federation: Federation, assignment: Assignment, digest: str, *, where: str) -> None:
    try:
        federation.blobs.check(digest, where=where)
    except ArtifactCorrupt as error:
        _make_again(federation, assignment, digest, error)
        federation.progress.say(f"{error}; made again from the model of that time, with the same digest")


def _make_again(federation: Federation, assignment: Assignment, digest: str, found: ArtifactCorrupt) -> None:
    config = in_model_form(federation.config, form_named(assignment.form))
    if is_language(config.model.build) and federation.ledger.artifacts.find(base_key(config)) == digest:
        federation.blobs.set_aside(digest)
        stored_base(config, federation.ledger, federation.blobs)  # the same bytes, or it says so
        return
    level = next(level for level in federation.method.levels() if level.name == assignment.level)
    cluster = read_order(assignment.order).cluster_name
    before = cluster_state(_model_before(federation, assignment.round), cluster)
    submodel = federation.method.cut(
        before,
        level,
        round_index=assignment.round,
        device=assignment.device,
        seed=federation.config.federation.seed,
    )
    manifest = federation.artifacts.load(assignment.artifact_digest).manifest
    for data in map(encode_tensors, split_tensors(with_variates(before, submodel, manifest))):
        if hashlib.sha256(data).hexdigest() == digest:
            federation.blobs.set_aside(digest)
            federation.ledger.blobs.add(federation.blobs.put(data), len(data))
            return
    raise ArtifactCorrupt(f"{found}; cut again from the model of that time it has other bits") from found


def _model_before(federation: Federation, round_index: int) -> State:
    """The state that ``round_index`` began with; kept as long as an update of that round may be counted."""
    if round_index == 0:
        return federation.method.init()
    before = next(r for r in federation.ledger.rounds.all() if r.round == round_index - 1 and r.state == "committed")
    return committed_state(federation, before, partial(renew, federation))
