"""The updates of a run in its ledger and blobs: which were ordered, what they must hold, what has become of them."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.blobs.blob_store import BlobStore, PartialBlob
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment, Measurement
from coordinator.submodels.packed_tensors import order_masks, upload_specs
from edge.contracts.errors import MessageRejected, UpdateRejected
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Ack
from edge.contracts.plan import BlobRef, read_order
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import MAX_HEADER_BYTES
from edge.contracts.tensors import TensorSpec
from edge.serving.publisher import Publisher
from edge.serving.update_check import check_update


class LedgerBook:
    """An :class:`edge.serving.uploads.UpdateBook`; an update counts when its row is in the ledger.

    Args:
        examples_of: how many examples a device said it has; None = it said no hello to this process.
    """

    def __init__(
        self, ledger: Ledger, blobs: BlobStore, publisher: Publisher, examples_of: Callable[[str], int | None]
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._publisher = publisher
        self._examples_of = examples_of
        self._manifests: dict[str, ArtifactManifest] = {}

    def own(self, device: str, assignment_id: str) -> Assignment | None:
        """The assignment if it is this device's; None when this run never made it (the device is told to forget it)."""
        entry = self._ledger.assignments.find(assignment_id)
        if entry is None:
            reason = f"assignment {assignment_id[:12]} is not of this run"
            self._publisher.ack(device, Ack(assignment_id, False, "unknown-assignment", reason))
            return None
        if entry.device != device:
            raise MessageRejected(f"assignment {assignment_id[:12]} belongs to '{entry.device}', not to '{device}'")
        if entry.state == "reported":
            self._publisher.ack(device, Ack(assignment_id, True))
            return None
        if entry.state in ("expired", "refused", "rejected"):
            reason = (
                f"round {entry.round}, attempt {entry.attempt}: assignment is {entry.state}. {entry.reason}".strip()
            )
            code = "stale-round" if entry.state == "expired" else entry.code or entry.state
            self._publisher.ack(device, Ack(assignment_id, False, code, reason))
            return None
        return entry

    def manifest(self, entry: Assignment) -> ArtifactManifest:
        """The manifest of an assignment's artifact."""
        manifest = self._manifests.get(entry.artifact_digest)
        if manifest is None:
            self._blobs.check(entry.artifact_digest, where="manifest of an artifact")
            manifest = ArtifactManifest.from_bytes(self._blobs.read(entry.artifact_digest))
            self._manifests[entry.artifact_digest] = manifest
        return manifest

    def partial(self, entry: Assignment, update: BlobRef) -> PartialBlob:
        """A file that outlives this process."""
        limit = sum(spec.byte_count() for spec in self._specs(entry)) + MAX_HEADER_BYTES
        if max(update.size, update.encoded_size) > limit:
            raise UpdateRejected(
                f"device {entry.device}, round {entry.round}: update of {update.size} bytes, "
                f"at most {limit} ordered; re-plan the device"
            )
        return self._blobs.partial(entry.assignment_id, update)

    def has(self, digest: str) -> bool:
        """Whether the blob is in the store."""
        return digest in self._blobs

    def examples(self, entry: Assignment) -> int | None:
        """As the device's last hello said."""
        return self._examples_of(entry.device)

    def check(self, entry: Assignment, digest: str, where: str) -> None:
        """Tensor by tensor; an update in fewer bits holds the difference to its weights."""
        order = read_order(entry.order)
        weights = None if order.precision == "fp32" else self._blobs.path(order.weights.digest)
        check_update(self._blobs.path(digest), self._specs(entry), where=where, weights=weights)

    def record(self, entry: Assignment, report: TrainReport) -> None:
        """In the ledger, with what the device measured."""
        digest = report.update.digest
        recorded = self._ledger.updates.record(
            entry.assignment_id, update_digest=digest, size=self._blobs.size(digest), report=report
        )
        if recorded and report.step_ms_p50 > 0:  # a light device of a load test measures nothing
            self._ledger.measurements.add(
                Measurement(
                    device=entry.device,
                    export_key=self.manifest(entry).export_key,
                    batch=read_order(entry.order).batch,
                    predicted_peak_bytes=read_order(entry.order).peak_bytes,
                    measured_peak_bytes=report.trainer_peak_bytes + report.supervisor_peak_bytes,
                    step_ms=report.step_ms_p50,
                )
            )

    def reject(self, entry: Assignment, error: UpdateRejected) -> None:
        """In the ledger."""
        self._ledger.assignments.move(entry.assignment_id, "rejected", code=error.code, reason=str(error)[:1000])

    def _specs(self, entry: Assignment) -> list[TensorSpec]:
        order = read_order(entry.order)
        return upload_specs(self.manifest(entry), order, order_masks(self._blobs, order))
