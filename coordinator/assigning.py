"""One device's share of a plan: where it is placed, where its weights lie, and the assignment the ledger keeps."""

from __future__ import annotations

from coordinator.artifacts import Artifact
from coordinator.federation import Federation
from coordinator.ledger_records import Assignment
from coordinator.methods.method import Level, Submodel
from coordinator.planner import Placement, place
from coordinator.round_metrics import measured_correction
from coordinator.submodels.record import cut_to_json
from edge.contracts.codec import encode_msgpack
from edge.contracts.manifest import Cost
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.tensor_file import encode_tensors
from profiles.device import DeviceProfile


def export_while_waiting(federation: Federation) -> None:
    """Export from the top of the ladder, where every placement begins, for as long as devices are still arriving."""
    method, config = federation.method, federation.config
    for level in method.levels():
        if len(federation.cohort.present()) >= config.cohort.size:
            return
        _artifact_of(federation, level, round_index=0, device="")


def place_device(federation: Federation, profile: DeviceProfile, round_index: int) -> Placement:
    """The largest level of the method's ladder that fits the device.

    Raises:
        PlanError: none does.
    """
    config = federation.config

    def artifact_of(level: Level) -> Artifact:
        return _artifact_of(federation, level, round_index=round_index, device=profile.device)

    def cost_of(level: Level) -> Cost:
        return artifact_of(level).manifest.cost

    def correction_of(level: Level) -> float:
        return measured_correction(federation, profile, artifact_of(level)) if config.planner.adapt else 1.0

    return place(
        profile,
        config.runtime.name,
        federation.method.levels(),
        cost_of,
        headroom=config.planner.headroom,
        correction_of=correction_of,
    )


def store_weights(federation: Federation, submodel: Submodel) -> BlobRef:
    """The submodel's values as a blob that is on disk and in the ledger."""
    data = encode_tensors(submodel.tensors)
    digest = federation.blobs.put(data)
    federation.ledger.add_blob(digest, len(data))
    return BlobRef(digest, len(data), "raw", len(data))


def assignment_of(order: WorkOrder, submodel: Submodel) -> Assignment:
    """The ledger's record of an order and the cut it is for."""
    return Assignment(
        assignment_id=order.assignment_id,
        round=order.round,
        attempt=order.attempt,
        device=order.device,
        level=submodel.level.name,
        cut=cut_to_json(submodel.cut),
        artifact_digest=order.artifact.digest,
        weights_digest=order.weights.digest,
        order=encode_msgpack(order),
    )


def _artifact_of(federation: Federation, level: Level, *, round_index: int, device: str) -> Artifact:
    """The artifact of a level, from shapes alone."""
    seed = federation.config.federation.seed
    shape = federation.method.cut_shape(level, round_index=round_index, device=device, seed=seed)
    return federation.artifacts.get(shape, federation.method.program(shape), federation.config.runtime.name)
