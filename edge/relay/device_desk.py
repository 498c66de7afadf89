"""What a relay answers the devices of its site: hellos, blocks of blobs, updates on their way in, reports.

An update counts when it is in the store, checked, and its report is on disk; only then is it acknowledged. Every
handler is idempotent: devices repeat what is not answered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from edge.artifact_store import ArtifactStore
from edge.contracts import topics
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.errors import ApportionError, ArtifactCorrupt, MessageRejected, StoreFull, UpdateRejected
from edge.contracts.manifest import check_digest
from edge.contracts.messages import Accept, Ack, Block, Error, Get, Grant, Hello, Offer, Put, Refuse
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import MAX_HEADER_BYTES, check_trained, read_tensor_file
from edge.contracts.tensors import TensorSpec
from edge.relay.report_check import check_report
from edge.relay.settings import RelaySettings
from edge.relay.site_devices import SiteDevices
from edge.relay.site_sum import upload_specs
from edge.relay.site_work import SiteWork
from edge.transport.base import Qos, Transport

log = logging.getLogger("apportion.relay")

MAX_BLOCK_BYTES = 262_144
UPLOAD_BLOCK_BYTES = 131_072
UPLOAD_WINDOW = 4
UPLOAD_TRIES = 3
"""Uploads of one update whose bytes do not have the announced digest; the last one rejects it."""


class DeviceDesk:
    """Everything between a relay and its devices; one message at a time, in the relay's thread.

    Args:
        collect_s: seconds the devices still have for the work in hand; infinite without a deadline.

    Attributes:
        work: the work in hand, set by the relay; None: there is none.
        bytes_down, bytes_up: of blocks sent to devices and of updates received, for the log.
    """

    def __init__(
        self,
        settings: RelaySettings,
        transport: Transport,
        store: ArtifactStore,
        devices: SiteDevices,
        collect_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._store = store
        self._devices = devices
        self._collect_s = collect_s
        self._uploads: dict[str, BlobRef] = {}
        self._tries: dict[str, int] = {}
        self.work: SiteWork | None = None
        self.bytes_down, self.bytes_up = 0, 0
        self._handlers: dict[str, Callable[[str, Envelope], None]] = {
            "hello": self._hello,
            "heartbeat": lambda device, envelope: None,
            "profile": lambda device, envelope: None,
            "bye": lambda device, envelope: self._devices.leave(device),
            "accept": self._accept,
            "refuse": self._refuse,
            "get": self._get,
            "offer": self._offer,
            "put": self._put,
            "report": self._report,
            "error": self._error,
        }

    def received(self, topic: str, payload: bytes) -> None:
        """Use one message; whatever is wrong with it is answered, logged and forgotten."""
        device = ""
        try:
            federation, device, kind = topics.parse_up(topic)
            envelope = unseal(payload)
            if (federation, envelope.kind) != (self._settings.site, kind):
                raise MessageRejected(f"{topic[:120]}: not of site '{self._settings.site}', or another kind inside")
            handler = self._handlers.get(kind)
            if handler is None:
                log.info("%s: message of kind %r ignored", device, kind[:40])
                return
            if not self._devices.beat(device, time.monotonic()) and kind not in ("hello", "bye"):
                self.call(device)  # it was here before this process was
            handler(device, envelope)
        except ApportionError as error:
            log.warning("%s: %s", device or topic[:80], error)
            if device:
                self._say(device, "error", Error(error.code, str(error)[:1000]))
        except OSError as error:  # nothing was acknowledged: the device says it again
            log.error("%s: %s; free disk space", device, error)
            self._say(device, "error", Error(StoreFull.code, "the relay cannot write to its disk"))

    def call(self, device: str = "") -> None:
        """Ask ``device``, or everyone, to say hello."""
        site = self._settings.site
        topic = topics.down(site, device, "hello") if device else topics.everyone(site, "hello")
        self._transport.publish(topic, seal("hello", {}), qos=1)

    def hand_out(self) -> None:
        """Give every device its part of the work in hand, if it has not given its update yet."""
        for device in self.work.open_devices() if self.work is not None else ():
            self._order(device)

    def let_go(self, work: SiteWork, reason: str) -> None:
        """Tell devices that still work on their part that it is not wanted any more, and drop what they sent."""
        for device in work.open_devices():
            self._say(device, "ack", Ack(work.assignment_of(device), False, "stale-round", reason))
        for ref in (*self._uploads.values(), *(report.update for report in work.reports.values())):
            self._store.drop(ref.digest)
        self._uploads.clear()
        self._tries.clear()

    def _order(self, device: str) -> None:
        work = self.work
        if work is None or work.closed is not None or device not in work.open_devices():
            return
        left = self._collect_s()
        if left <= 0:
            return
        order = work.device_order(device, site=self._settings.site, deadline_s=left if left < float("inf") else 0.0)
        key = self._settings.key
        if key is not None and not order.artifact_signature:
            manifest = self._store.path(order.artifact.digest).read_bytes()
            order = msgspec.structs.replace(order, artifact_signature=key.manifest(manifest))
        payload = seal("order", order, sign=None if key is None else key.order)
        self._transport.publish(topics.down(self._settings.site, device, "order"), payload, qos=1)

    # presence

    def _hello(self, device: str, envelope: Envelope) -> None:
        hello = envelope.read(Hello)
        if hello.device != device or hello.profile.device != device:
            raise MessageRejected(f"hello of '{hello.device[:64]}' arrived on the topic of '{device}'; it was not used")
        if self._devices.hello(device) is None:
            log.info("%s is here: %d examples", device, hello.num_examples)
        self._devices.greet(hello, time.monotonic())
        self._order(device)

    def _error(self, device: str, envelope: Envelope) -> None:
        error = envelope.read(Error)
        log.warning("%s reports %s: %s", device, error.code[:64], error.message[:300])

    # blobs on their way out

    def _get(self, device: str, envelope: Envelope) -> None:
        get = envelope.read(Get)
        check_digest(get.digest, where=f"device {device}, get")
        if get.encoding != "raw" or not self._is_served(get.digest):
            what = f"blob {get.digest[:12]}, encoding {get.encoding!r}"
            self._say(
                device, "error", Error("unknown-blob", f"{what} is not served; say hello for a new order", get.digest)
            )
            return
        with self._store.path(get.digest).open("rb") as file:
            total = file.seek(0, 2)
            file.seek(min(max(get.offset, 0), total))
            data = file.read(min(max(get.length, 0), MAX_BLOCK_BYTES))
        self.bytes_down += len(data)
        self._say(device, "block", Block(get.digest, get.offset, total, data), qos=0)

    def _is_served(self, digest: str) -> bool:
        """Other devices' updates are in the same store, and are nobody's."""
        is_update = digest in {report.update.digest for report in self.work.reports.values()} if self.work else False
        return not is_update and self._store.has(digest)

    # updates on their way in

    def _own(self, device: str, assignment: str) -> SiteWork | None:
        """The work in hand if ``assignment`` is the device's open part of it; else the device is told what it is."""
        work = self.work
        if work is None or device not in work.record.examples or assignment != work.assignment_of(device):
            reason = f"assignment {assignment[:12]} is not of the work in hand"
            self._say(device, "ack", Ack(assignment[:64], False, "unknown-assignment", reason))
        elif device in work.reports:
            is_counted = work.closed is None or device in work.closed
            self._say(device, "ack", Ack(assignment, is_counted, "" if is_counted else "stale-round"))
        elif device in work.refused:
            self._say(device, "ack", Ack(assignment, False, "refused", work.refused[device][:1000]))
        elif work.closed is not None:
            self._say(device, "ack", Ack(assignment, False, "stale-round", "the site's update is made already"))
        else:
            return work
        return None

    def _accept(self, device: str, envelope: Envelope) -> None:
        self._own(device, envelope.read(Accept).assignment_id)

    def _refuse(self, device: str, envelope: Envelope) -> None:
        refusal = envelope.read(Refuse)
        work = self._own(device, refusal.assignment_id)
        if work is not None:
            work.refuse(device, f"{refusal.code[:64]}: {refusal.reason[:900]}")
            log.info("%s refuses round %d (%s)", device, work.order.round, work.refused[device][:300])
            self._say(device, "ack", Ack(refusal.assignment_id, False, "refused", "refusal recorded"))

    def _offer(self, device: str, envelope: Envelope) -> None:
        offer = envelope.read(Offer)
        work = self._own(device, offer.assignment_id)
        if work is None:
            return
        try:
            self._expect(work, device, offer.update)
        except UpdateRejected as error:
            self._reject(work, device, error)
            return
        self._grant(device, offer.assignment_id, offer.update)

    def _expect(self, work: SiteWork, device: str, update: BlobRef) -> None:
        """Make room for ``update``, of a size that can be what was ordered."""
        check_digest(update.digest, where=f"device {device}, update")
        limit = sum(spec.byte_count() for spec in self._specs(work.order)) + MAX_HEADER_BYTES
        if not 0 < max(update.size, update.encoded_size) <= limit or update.encoding != work.order.encoding:
            raise UpdateRejected(
                f"device {device}, round {work.order.round}: update of {update.size} bytes, {update.encoding}; at most "
                f"{limit}, {work.order.encoding} ordered"
            )
        self._store.pin(update.digest)
        if not self._store.has(update.digest):
            self._store.reserve(max(0, update.encoded_size - self._received(update)))
        self._uploads[device] = update

    def _put(self, device: str, envelope: Envelope) -> None:
        put = envelope.read(Put)
        update, work = self._uploads.get(device), self.work
        if update is None or work is None or put.digest != update.digest:
            return  # not offered to this process: the device stalls, offers again and is told where to go on
        if put.assignment_id != work.assignment_of(device) or work.closed is not None:
            self._own(device, put.assignment_id)
            return
        is_next = not self._store.has(update.digest) and put.offset == self._received(update)
        if is_next and put.offset + len(put.data) <= update.encoded_size:
            with self._store.partial(update).open("ab") as file:
                file.write(put.data)
            self.bytes_up += len(put.data)
        self._grant(device, put.assignment_id, update)

    def _received(self, update: BlobRef) -> int:
        return self._store.partial(update).stat().st_size

    def _grant(self, device: str, assignment: str, update: BlobRef) -> None:
        offset = update.encoded_size if self._store.has(update.digest) else self._received(update)
        self._say(device, "grant", Grant(assignment, update.digest, offset, UPLOAD_BLOCK_BYTES, UPLOAD_WINDOW), qos=0)

    def _report(self, device: str, envelope: Envelope) -> None:
        report = envelope.read(TrainReport)
        work = self._own(device, report.assignment_id)
        if work is None:
            return
        where, update = f"device {device}, round {work.order.round}", report.update
        hello = self._devices.hello(device)
        examples = max(work.record.examples[device], 0 if hello is None else hello.num_examples)
        try:
            check_report(report, device=device, round_index=work.order.round, examples=examples)
            if self._uploads.get(device) != update:
                self._expect(work, device, update)  # after a restart
            if not self._store.has(update.digest) and not self._complete(device, report, where):
                return
            path = self._store.path(update.digest)
            try:
                tensors = read_tensor_file(path, where=where)
            except ArtifactCorrupt as error:
                raise UpdateRejected(f"{error}; the update is not a tensor file") from error
            check_trained(tensors, self._specs(work.order), where=where)
        except UpdateRejected as error:
            self._reject(work, device, error)
            return
        work.count(report)
        self._uploads.pop(device, None)
        log.info("%s: update of %d examples is in, %d to come", device, report.num_examples, len(work.open_devices()))
        self._say(device, "ack", Ack(report.assignment_id, True))

    def _complete(self, device: str, report: TrainReport, where: str) -> bool:
        """Whether the uploaded bytes are the announced ones; when not, the device is asked for them again."""
        if self._received(report.update) < report.update.encoded_size:
            self._grant(device, report.assignment_id, report.update)
            return False
        try:
            self._store.complete(report.update)
        except ArtifactCorrupt as error:
            self._tries[device] = self._tries.get(device, 0) + 1
            if self._tries[device] == UPLOAD_TRIES:
                raise UpdateRejected(f"{where}: {UPLOAD_TRIES} uploads and never the announced bytes") from error
            log.warning("%s: %s", where, error)
            self._grant(device, report.assignment_id, report.update)
            return False
        return True

    def _specs(self, order: WorkOrder) -> list[TensorSpec]:
        return upload_specs(order, self._store.path(order.weights.digest))

    def _reject(self, work: SiteWork, device: str, error: UpdateRejected) -> None:
        log.warning("update rejected: %s", error)
        work.refuse(device, str(error)[:1000])
        self._uploads.pop(device, None)
        self._say(device, "ack", Ack(work.assignment_of(device), False, error.code, str(error)[:1000]))

    def _say(self, device: str, kind: str, body: msgspec.Struct, *, qos: Qos = 1) -> None:
        self._transport.publish(topics.down(self._settings.site, device, kind), seal(kind, body), qos=qos)
