"""Everything devices send: checked, written to the ledger, answered. One handler per message kind, one thread.

An update counts when its blob is on disk and its row is in the ledger; only then is it acknowledged. Every handler is
idempotent: devices repeat what is not answered, brokers deliver twice. A message that cannot be used is answered with
an ``error`` and changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from coordinator.blob_store import BlobStore, PartialBlob
from coordinator.cohort import Cohort
from coordinator.ledger import Ledger
from coordinator.ledger_records import Assignment, Measurement
from coordinator.packed_tensors import order_masks, upload_specs
from coordinator.publisher import MAX_BLOCK_BYTES, Publisher, read_order
from coordinator.update_check import check_report, check_storable, check_update
from edge.contracts import topics
from edge.contracts.envelope import Envelope, unseal
from edge.contracts.errors import ApportionError, ArtifactCorrupt, MessageRejected, UpdateRejected
from edge.contracts.manifest import ArtifactManifest, check_digest
from edge.contracts.messages import Accept, Ack, Bye, Error, Get, Grant, Heartbeat, Hello, Offer, Put, Refuse
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import MAX_HEADER_BYTES
from edge.contracts.tensors import TensorSpec
from profiles.device import DeviceProfile

UPLOAD_WINDOW = 4
UPLOAD_BLOCK_BYTES = 131_072

UPLOAD_TRIES = 3
"""Uploads of one assignment whose bytes do not have the announced digest; the last one rejects the update."""


class Inbox:
    """Handles one message at a time; :meth:`handle` never raises for what a device sent.

    Args:
        remaining_s: seconds left in the open round, for orders that are announced again.
        say: progress lines for people.
        on_point: see :class:`coordinator.federation.Federation`.
        check: raises SignatureRejected for a message of a device that is not that device's own; None: all are.
    """

    def __init__(
        self,
        federation: str,
        *,
        ledger: Ledger,
        blobs: BlobStore,
        cohort: Cohort,
        publisher: Publisher,
        remaining_s: Callable[[], float],
        say: Callable[[str], None],
        on_point: Callable[[str], None] = lambda point: None,
        check: Callable[[str, Envelope], None] | None = None,
    ) -> None:
        self._federation = federation
        self._ledger = ledger
        self._blobs = blobs
        self._cohort = cohort
        self._publisher = publisher
        self._remaining_s = remaining_s
        self._say = say
        self._on_point = on_point
        self._check = check
        self._changed = threading.Condition()
        self._has_news = False
        self._manifests: dict[str, ArtifactManifest] = {}
        self._handlers: dict[str, Callable[[str, Envelope], None]] = {
            "hello": self._hello,
            "heartbeat": self._heartbeat,
            "bye": lambda device, e: self._cohort.leave(device, e.read(Bye).reason),
            "profile": self._profile,
            "accept": self._accept,
            "refuse": self._refuse,
            "get": lambda device, e: self._publisher.block(device, e.read(Get)),
            "offer": self._offer,
            "put": self._put,
            "report": self._report,
            "error": self._error,
        }
        self._uploads: dict[str, PartialBlob] = {}
        self._corrupt_uploads: dict[str, int] = {}

    def wait(self, timeout_s: float) -> None:
        """Return when the ledger changed since the last call, or after ``timeout_s``. For one waiting thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_news, timeout_s)
            self._has_news = False

    def handle(self, topic: str, payload: bytes) -> None:
        """Use one message; whatever is wrong with it is answered, logged and forgotten."""
        device = ""
        try:
            federation, device, kind = topics.parse_up(topic)
            if federation != self._federation:
                raise MessageRejected(f"topic names federation '{federation}', this is '{self._federation}'")
            envelope = unseal(payload)
            if envelope.kind != kind:
                raise MessageRejected(f"topic says '{kind}', the envelope says '{envelope.kind[:40]}'")
            if self._check is not None:
                self._check(device, envelope)
            handler = self._handlers.get(kind)
            if handler is None:
                self._say(f"{device}: message kind '{kind}' is unknown here and was ignored")
                return
            handler(device, envelope)
        except ApportionError as error:
            self._say(f"{device or topic[:80]}: {error}")
            if device:
                self._publisher.error(device, Error(error.code, str(error)[:1000]))

    def _hello(self, device: str, envelope: Envelope) -> None:
        hello = envelope.read(Hello)
        if hello.device != device or hello.profile.device != device:
            raise MessageRejected(f"hello of '{hello.device[:64]}' arrived on the topic of '{device}'; it was not used")
        check_storable(hello.profile, where=f"{device}: profile")
        is_new = self._cohort.member(device) is None
        self._cohort.greet(hello)
        if is_new:
            self._say(self._cohort.arrival(hello))
        self.announce(device)

    def _profile(self, device: str, envelope: Envelope) -> None:
        """A device that joins later is planned with its newest profile; one in the run's snapshot keeps that."""
        profile = envelope.read(DeviceProfile)
        if profile.device != device:
            raise MessageRejected(f"profile of '{profile.device[:64]}' arrived on the topic of '{device}'; not used")
        check_storable(profile, where=f"{device}: profile")
        member = self._cohort.member(device)
        if member is None:
            self._publisher.call(device)
            return
        self._cohort.greet(msgspec.structs.replace(member.hello, profile=profile))

    def _heartbeat(self, device: str, envelope: Envelope) -> None:
        if not self._cohort.beat(device, envelope.read(Heartbeat)):
            self._publisher.call(device)  # it was here before this process was: only its hello tells what it is

    def connected(self) -> None:
        """Ask who is there, and announce to those known: agents may be older than this process, orders may be lost."""
        self._publisher.call()
        for hello in self._cohort.present(usable_only=False):
            self.announce(hello.device)

    def announce(self, device: str) -> None:
        """Send ``device`` its open order of the open round again, if it has one."""
        attempt = self._ledger.open_round()
        if attempt is None or attempt.state not in ("published", "collecting"):
            return
        for entry in self._ledger.assignments(attempt.round, attempt.attempt, "open", "accepted"):
            if entry.device == device:
                self._publisher.order(read_order(entry.order), deadline_s=self._remaining_s())

    def _own(self, device: str, assignment_id: str) -> Assignment | None:
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

    def _accept(self, device: str, envelope: Envelope) -> None:
        entry = self._own(device, envelope.read(Accept).assignment_id)
        if entry is not None and entry.state == "open":
            self._ledger.move_assignment(entry.assignment_id, "accepted")
            self._notify()

    def _refuse(self, device: str, envelope: Envelope) -> None:
        refusal = envelope.read(Refuse)
        entry = self._own(device, refusal.assignment_id)
        if entry is None:
            return
        self._ledger.move_assignment(
            entry.assignment_id,
            "refused",
            code=refusal.code[:64],
            reason=refusal.reason[:1000],
            peak_bytes=refusal.peak_bytes,
            limit_bytes=refusal.budget_bytes,
        )
        self._say(f"{device} refuses round {entry.round} ({refusal.code[:64]}): {refusal.reason[:300]}")
        if refusal.code == ArtifactCorrupt.code:
            self._drop_corrupt_blobs(entry)
        self._publisher.ack(device, Ack(entry.assignment_id, False, "refused", "refusal recorded"))
        self._notify()

    def _drop_corrupt_blobs(self, entry: Assignment) -> None:
        """Delete what the device was sent and is not its digest on our own disk: the next attempt makes it anew."""
        digests = [entry.weights_digest, entry.artifact_digest]
        constants = read_order(entry.order).constants
        if constants is not None:
            digests.append(constants.digest)
        if entry.artifact_digest in self._blobs:
            try:
                digests += [file.sha256 for file in self._manifest(entry).files]
            except MessageRejected as error:
                self._say(f"manifest {entry.artifact_digest[:12]} cannot be read: {error}")
        for digest in digests:
            try:
                self._blobs.verify(digest)
            except ArtifactCorrupt as error:
                self._say(f"{error}; it is made anew")
                self._publisher.forget(digest)
                self._blobs.delete(digest)

    def _offer(self, device: str, envelope: Envelope) -> None:
        offer = envelope.read(Offer)
        entry = self._own(device, offer.assignment_id)
        if entry is None:
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
        self._uploads[entry.assignment_id] = partial
        self._grant(device, entry.assignment_id, partial)

    def _put(self, device: str, envelope: Envelope) -> None:
        put = envelope.read(Put)
        partial = self._uploads.get(put.assignment_id)
        if partial is None or partial.update.digest != put.digest or self._own(device, put.assignment_id) is None:
            return  # not offered to this process: the device stalls, offers again and is told where to go on
        if put.digest not in self._blobs:
            partial.write(put.offset, put.data)
            self._on_point("mid-upload")
        self._grant(device, put.assignment_id, partial)

    def _grant(self, device: str, assignment_id: str, partial: PartialBlob) -> None:
        update = partial.update
        offset = update.encoded_size if update.digest in self._blobs else partial.received
        self._publisher.grant(
            device, Grant(assignment_id, update.digest, offset, min(UPLOAD_BLOCK_BYTES, MAX_BLOCK_BYTES), UPLOAD_WINDOW)
        )

    def _report(self, device: str, envelope: Envelope) -> None:
        report = envelope.read(TrainReport)
        entry = self._own(device, report.assignment_id)
        if entry is None:
            return
        where = f"device {device}, round {entry.round}"
        digest = check_digest(report.update.digest, where=f"{where}, report")
        try:
            check_report(entry, report, where=where)
            if digest not in self._blobs and not self._finish_upload(entry, report, where):
                return
            check_update(self._blobs.path(digest), self._upload_specs(entry), where=where)
        except UpdateRejected as error:
            self._reject(entry, error)
            return
        recorded = self._ledger.record_update(
            entry.assignment_id, update_digest=digest, size=self._blobs.size(digest), report=report
        )
        if recorded:
            self._measure(entry, report)
        self._forget_upload(entry.assignment_id)
        self._publisher.ack(device, Ack(entry.assignment_id, True))
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
            self._uploads[entry.assignment_id] = partial
            self._grant(entry.device, entry.assignment_id, partial)
            return False
        return True

    def _manifest(self, entry: Assignment) -> ArtifactManifest:
        manifest = self._manifests.get(entry.artifact_digest)
        if manifest is None:
            manifest = ArtifactManifest.from_bytes(self._blobs.path(entry.artifact_digest).read_bytes())
            self._manifests[entry.artifact_digest] = manifest
        return manifest

    def _upload_specs(self, entry: Assignment) -> list[TensorSpec]:
        order = read_order(entry.order)
        return upload_specs(self._manifest(entry), order, order_masks(self._blobs, order))

    def _update_limit(self, entry: Assignment) -> int:
        return sum(spec.byte_count() for spec in self._upload_specs(entry)) + MAX_HEADER_BYTES

    def _reject(self, entry: Assignment, error: UpdateRejected) -> None:
        self._ledger.move_assignment(entry.assignment_id, "rejected", code=error.code, reason=str(error)[:1000])
        self._say(f"update rejected: {error}")
        self._forget_upload(entry.assignment_id)
        self._publisher.ack(entry.device, Ack(entry.assignment_id, False, error.code, str(error)[:1000]))
        self._notify()

    def _forget_upload(self, assignment_id: str) -> None:
        self._uploads.pop(assignment_id, None)
        self._corrupt_uploads.pop(assignment_id, None)

    def _measure(self, entry: Assignment, report: TrainReport) -> None:
        order = read_order(entry.order)
        self._ledger.add_measurement(
            Measurement(
                device=entry.device,
                export_key=self._manifest(entry).export_key,
                batch=order.batch,
                predicted_peak_bytes=order.peak_bytes,
                measured_peak_bytes=report.trainer_peak_bytes + report.supervisor_peak_bytes,
                step_ms=report.step_ms_p50,
            )
        )

    def _error(self, device: str, envelope: Envelope) -> None:
        error = envelope.read(Error)
        self._say(f"{device} reports {error.code[:64]}: {error.message[:300]}")

    def _notify(self) -> None:
        with self._changed:
            self._has_news = True
            self._changed.notify_all()
