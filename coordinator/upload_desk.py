"""Updates on their way in: offered, granted, received block by block, checked, written to the ledger, acknowledged.

An update counts when its blob is on disk and its row is in the ledger; only then is it acknowledged. Every handler is
idempotent; whose message it is and whether it can be read is :mod:`coordinator.inbox`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from coordinator.admission import UPLOADS_AT_ONCE, Admission
from coordinator.blob_store import BlobStore, PartialBlob
from coordinator.ledger import Ledger
from coordinator.ledger_records import Assignment, Measurement
from coordinator.packed_tensors import order_masks, upload_specs
from coordinator.publisher import MAX_BLOCK_BYTES, Publisher, read_order
from coordinator.update_check import check_report, check_update
from edge.contracts.envelope import Envelope
from edge.contracts.errors import ArtifactCorrupt, MessageRejected, UpdateRejected
from edge.contracts.manifest import ArtifactManifest, check_digest
from edge.contracts.messages import Ack, Grant, Offer, Put
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import MAX_HEADER_BYTES
from edge.contracts.tensors import TensorSpec

UPLOAD_WINDOW = 3
"""Blocks on their way: what a broken connection may cost, 2 % of 20 MB. 30 Mbit/s over 100 ms still fill the link."""
UPLOAD_BLOCK_BYTES = 131_072

LOOK_BYTES = 1 << 20
UPLOAD_TRIES = 3
"""Uploads of one assignment whose bytes do not have the announced digest; the last one rejects the update."""


class UploadPlace(NamedTuple):
    """How far an upload has come, and where it ends; in bytes as they travel."""

    received: int
    size: int


class UploadDesk:
    """Handles ``offer``, ``put`` and ``report``; one message at a time.

    Args:
        say: progress lines for people.
        on_point: see :class:`coordinator.federation.Federation`.
        notify: called when an assignment's state changed.
        examples_of: how many examples a device said it has; 0 = not known.
        at_once: uploads that have their grants at the same time.

    Attributes:
        handlers: by message kind.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        blobs: BlobStore,
        publisher: Publisher,
        say: Callable[[str], None],
        on_point: Callable[[str], None],
        notify: Callable[[], None],
        at_once: int = UPLOADS_AT_ONCE,
        examples_of: Callable[[str], int] = lambda device: 0,
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._publisher = publisher
        self._say = say
        self._on_point = on_point
        self._notify = notify
        self._examples_of = examples_of
        self._manifests: dict[str, ArtifactManifest] = {}
        self._uploads: dict[str, tuple[str, PartialBlob]] = {}
        self._admission = Admission(at_once)
        self._corrupt_uploads: dict[str, int] = {}
        self.handlers: dict[str, Callable[[str, Envelope], None]] = {
            "offer": self._offer,
            "put": self._put,
            "report": self._report,
        }

    def own(self, device: str, assignment_id: str) -> Assignment | None:
        """The assignment if it is this device's; None when this run never made it (the device is told to forget it)."""
        entry = self._ledger.assignment(assignment_id)
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

    def _offer(self, device: str, envelope: Envelope) -> None:
        offer = envelope.read(Offer)
        entry = self.own(device, offer.assignment_id)
        if entry is None:
            self.forget(offer.assignment_id)
            return
        check_digest(offer.update.digest, where=f"device {device}, offer")
        limit = self._update_limit(entry)
        if max(offer.update.size, offer.update.encoded_size) > limit:
            self._reject(
                entry,
                UpdateRejected(
                    f"device {device}, round {entry.round}: update of {offer.update.size} bytes, "
                    f"at most {limit} ordered; re-plan the device"
                ),
            )
            return
        partial = self._blobs.partial(entry.assignment_id, offer.update)
        self._uploads[entry.assignment_id] = device, partial
        if self._admission.ask(entry.assignment_id):
            self._grant(device, entry.assignment_id, partial)

    def _put(self, device: str, envelope: Envelope) -> None:
        put = envelope.read(Put)
        owner, partial = self._uploads.get(put.assignment_id, ("", None))
        if partial is None or partial.update.digest != put.digest or owner != device:
            return  # not offered to this process: the device stalls, offers again and is told where to go on
        # Whether it is wanted still is looked up once a MiB: nothing counts before its report.
        if put.offset % LOOK_BYTES == 0 and self.own(device, put.assignment_id) is None:
            self.forget(put.assignment_id)
            return
        self._admission.heard(put.assignment_id)
        if put.digest not in self._blobs:
            before = partial.received
            self._publisher.account.add(device, "up", "mqtt", payload=partial.write(put.offset, put.data) - before)
            self._on_point("mid-upload")
        self._grant(device, put.assignment_id, partial)

    def place(self, device: str, assignment_id: str) -> UploadPlace | None:
        """Where an upload goes on that comes by other ways than ``put``; None when it has no grant or is not wanted.

        Raises:
            MessageRejected: the assignment is another device's.
        """
        owner, partial = self._uploads.get(assignment_id, ("", None))
        if self.own(device, assignment_id) is None:
            self.forget(assignment_id)
            return None
        if partial is None or owner != device or self._admission.is_waiting(assignment_id):
            return None
        self._admission.heard(assignment_id)
        return UploadPlace(self._come(partial), partial.update.encoded_size)

    def write(self, device: str, assignment_id: str, offset: int, data: bytes) -> int:
        """Bytes that are here after ``data`` of an upload that had a :meth:`place`.

        Raises:
            MessageRejected: it was offered to somebody else since, or passes its size.
            StoreFull: as :meth:`coordinator.blob_partials.PartialBlob.write`.
        """
        owner, partial = self._uploads.get(assignment_id, ("", None))
        if partial is None or owner != device:
            raise MessageRejected(f"upload of assignment {assignment_id[:12]} is over; offer it again")
        self._admission.heard(assignment_id)
        if partial.update.digest not in self._blobs:
            partial.write(offset, data)
            self._on_point("mid-upload")
        return self._come(partial)

    def _come(self, partial: PartialBlob) -> int:
        return partial.update.encoded_size if partial.update.digest in self._blobs else partial.received

    def _grant(self, device: str, assignment_id: str, partial: PartialBlob) -> None:
        block_bytes = min(UPLOAD_BLOCK_BYTES, MAX_BLOCK_BYTES)
        self._publisher.grant(
            device, Grant(assignment_id, partial.update.digest, self._come(partial), block_bytes, UPLOAD_WINDOW)
        )

    def _report(self, device: str, envelope: Envelope) -> None:
        report = envelope.read(TrainReport)
        entry = self.own(device, report.assignment_id)
        if entry is None:
            return
        where = f"device {device}, round {entry.round}"
        digest = check_digest(report.update.digest, where=f"{where}, report")
        try:
            check_report(entry, report, where=where, examples=self._examples_of(device))
            if digest not in self._blobs and not self._finish_upload(entry, report, where):
                return
            check_update(
                self._blobs.path(digest), self._upload_specs(entry), where=where, weights=self._differs_from(entry)
            )
        except UpdateRejected as error:
            self._reject(entry, error)
            return
        self._on_point("blob-stored")
        recorded = self._ledger.record_update(
            entry.assignment_id, update_digest=digest, size=self._blobs.size(digest), report=report
        )
        if recorded and report.step_ms_p50 > 0:  # a light device of a load test measures nothing
            self._measure(entry, report)
        self._on_point("recorded")
        self.forget(entry.assignment_id)
        self._publisher.ack(device, Ack(entry.assignment_id, True))
        self._on_point("acknowledged")
        self._notify()

    def _finish_upload(self, entry: Assignment, report: TrainReport, where: str) -> bool:
        """Whether the uploaded bytes are the announced ones; when not, the device is asked for them again."""
        try:
            self._blobs.partial(entry.assignment_id, report.update).finish()
        except ArtifactCorrupt as error:
            tries = self._corrupt_uploads.get(entry.assignment_id, 0) + 1
            if tries == UPLOAD_TRIES:
                raise UpdateRejected(f"{where}: {tries} uploads and never the announced bytes: {error}") from error
            self._corrupt_uploads[entry.assignment_id] = tries
            self._say(f"{where}: {error}")
            partial = self._blobs.partial(entry.assignment_id, report.update)
            self._uploads[entry.assignment_id] = entry.device, partial
            self._grant(entry.device, entry.assignment_id, partial)
            return False
        return True

    def _upload_specs(self, entry: Assignment) -> list[TensorSpec]:
        order = read_order(entry.order)
        return upload_specs(self.manifest(entry), order, order_masks(self._blobs, order))

    def _differs_from(self, entry: Assignment) -> Path | None:
        """The weights that an update in fewer bits holds the difference to; None where whole values were ordered."""
        order = read_order(entry.order)
        return None if order.precision == "fp32" else self._blobs.path(order.weights.digest)

    def _update_limit(self, entry: Assignment) -> int:
        return sum(spec.byte_count() for spec in self._upload_specs(entry)) + MAX_HEADER_BYTES

    def _reject(self, entry: Assignment, error: UpdateRejected) -> None:
        self._ledger.move_assignment(entry.assignment_id, "rejected", code=error.code, reason=str(error)[:1000])
        self._say(f"update rejected: {error}")
        self.forget(entry.assignment_id)
        self._publisher.ack(entry.device, Ack(entry.assignment_id, False, error.code, str(error)[:1000]))
        self._notify()

    def forget(self, assignment_id: str) -> None:
        """Take nothing more of an upload; whoever waited for its turn has it."""
        self._uploads.pop(assignment_id, None)
        self._corrupt_uploads.pop(assignment_id, None)
        for following in self._admission.leave(assignment_id):
            if following in self._uploads:
                device, partial = self._uploads[following]
                self._grant(device, following, partial)

    def _measure(self, entry: Assignment, report: TrainReport) -> None:
        order = read_order(entry.order)
        self._ledger.add_measurement(
            Measurement(
                device=entry.device,
                export_key=self.manifest(entry).export_key,
                batch=order.batch,
                predicted_peak_bytes=order.peak_bytes,
                measured_peak_bytes=report.trainer_peak_bytes + report.supervisor_peak_bytes,
                step_ms=report.step_ms_p50,
            )
        )
