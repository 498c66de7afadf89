"""What a relay answers the devices of its site: hellos, blocks of blobs, updates on their way in, reports.

An update counts when it is in the store, checked, and its report is on disk. Messages and uploads are handled as a
coordinator's are (:mod:`edge.serving`); what a relay has of its own about them is here.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from edge.contracts import topics
from edge.contracts.envelope import Envelope
from edge.contracts.errors import StoreFull, UpdateRejected
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Accept, Ack, Error, Get, Refuse
from edge.contracts.plan import BlobRef
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import MAX_HEADER_BYTES
from edge.contracts.tensors import TensorSpec
from edge.relay.settings import RelaySettings
from edge.relay.site_devices import SiteDevices
from edge.relay.site_sum import upload_specs
from edge.relay.site_work import SiteWork
from edge.serving.budgets import Budgets, over_budget
from edge.serving.dispatch import Dispatcher, own_hello
from edge.serving.publisher import Publisher
from edge.serving.update_check import check_update
from edge.serving.uploads import UploadHandler
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.base import Transport

log = logging.getLogger("apportion.relay")

UPLOAD_WINDOW = 4


class SitePart(NamedTuple):
    """A device's open part of the work in hand."""

    assignment_id: str
    device: str
    round: int
    work: SiteWork


class SitePartial:
    """A :class:`edge.serving.uploads.PartialUpload` in the relay's store."""

    def __init__(self, store: ArtifactStore, update: BlobRef) -> None:
        self._store = store
        self.update = update

    @property
    def received(self) -> int:
        """Encoded bytes that are here."""
        return self._store.partial(self.update).stat().st_size

    def write(self, offset: int, data: bytes) -> int:
        """Append ``data`` when it is the next piece and does not pass the update's end."""
        received = self.received
        if offset != received or offset + len(data) > self.update.encoded_size:
            return received
        with self._store.partial(self.update).open("ab") as file:
            file.write(data)
        return received + len(data)

    def finish(self) -> bool:
        """Make it a blob; False when some of it is to come."""
        if self.received < self.update.encoded_size:
            return False
        self._store.complete(self.update)
        return True


class DeviceHandler:
    """Everything between a relay and its devices; one message at a time, in the relay's thread.

    It is the :class:`edge.serving.uploads.UpdateBook` of the site, and says which blobs devices may ask for.

    Args:
        collect_s: seconds the devices still have for the work in hand; infinite without a deadline.

    Attributes:
        work: the work in hand, set by the relay; None: there is none.
        publisher: sends to the devices.
    """

    def __init__(
        self,
        settings: RelaySettings,
        transport: Transport,
        store: ArtifactStore,
        devices: SiteDevices,
        collect_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._devices = devices
        self._collect_s = collect_s
        self._site = settings.site
        self._expected: set[str] = set()
        self._offers: dict[str, str] = {}
        self.work: SiteWork | None = None
        budgets = Budgets(lambda device, why: log.warning("%s", over_budget(device, why)))
        self.publisher = Publisher(settings.site, self, transport, signer=settings.key, budgets=budgets)
        self._uploads = UploadHandler(
            self, self.publisher, log.warning, at_once=sys.maxsize, look_bytes=1, window=UPLOAD_WINDOW
        )
        handlers: dict[str, Callable[[str, Envelope], None]] = {
            "hello": self._hello,
            "heartbeat": lambda device, envelope: None,
            "profile": lambda device, envelope: None,
            "bye": lambda device, envelope: self._devices.leave(device),
            "accept": self._accept,
            "refuse": self._refuse,
            "get": lambda device, envelope: self.publisher.block(device, envelope.read(Get)),
            **self._uploads.handlers,
        }
        self._dispatcher = Dispatcher(settings.site, handlers, self.publisher, log.warning, check=self._heard)

    def received(self, topic: str, payload: bytes) -> None:
        """Use one message; whatever is wrong with it is answered, logged and forgotten."""
        try:
            self._dispatcher.handle(topic, payload)
        except OSError as error:  # nothing was acknowledged: the device says it again
            _, device, _ = topics.parse_up(topic)
            log.error("%s: %s; free disk space", device, error)
            self.publisher.error(device, Error(StoreFull.code, "the relay cannot write to its disk"))

    def hand_out(self) -> None:
        """Give every device its part of the work in hand, if it has not given its update yet."""
        for device in self.work.open_devices() if self.work is not None else ():
            self._order(device)

    def let_go(self, work: SiteWork, reason: str) -> None:
        """Tell devices that still work on their part that it is not wanted any more, and drop what they sent."""
        for device in work.open_devices():
            self.publisher.ack(device, Ack(work.assignment_of(device), False, "stale-round", reason))
        for device in work.record.examples:
            self._uploads.forget(work.assignment_of(device))
        for digest in (self._expected | _updates(work)) - self._ordered(work):
            self._store.drop(digest)
        self._expected.clear()
        self._offers.clear()
        self.publisher.close()

    def _order(self, device: str) -> None:
        work, left = self.work, self._collect_s()
        if work is not None and work.closed is None and device in work.open_devices() and left > 0:
            deadline_s = left if left < float("inf") else 0.0
            order = work.device_order(device, site=self._site, deadline_s=deadline_s)
            self.publisher.order(order, deadline_s=deadline_s)

    def _heard(self, device: str, envelope: Envelope) -> None:
        if not self._devices.beat(device, time.monotonic()) and envelope.kind not in ("hello", "bye"):
            self.publisher.call(device)  # it was here before this process was

    def _hello(self, device: str, envelope: Envelope) -> None:
        hello = own_hello(device, envelope)
        if self._devices.hello(device) is None:
            log.info("%s is here: %d examples", device, hello.num_examples)
        self._devices.greet(hello, time.monotonic())
        self._order(device)

    def _accept(self, device: str, envelope: Envelope) -> None:
        self.own(device, envelope.read(Accept).assignment_id)

    def _refuse(self, device: str, envelope: Envelope) -> None:
        refusal = envelope.read(Refuse)
        part = self.own(device, refusal.assignment_id)
        if part is not None:
            part.work.refuse(device, f"{refusal.code[:64]}: {refusal.reason[:900]}")
            log.info("%s refuses round %d (%s)", device, part.round, part.work.refused[device][:300])
            self.publisher.ack(device, Ack(refusal.assignment_id, False, "refused", "refusal recorded"))

    # blobs that devices may ask for

    def __contains__(self, digest: str) -> bool:
        # Other devices' updates are in the same store, and are nobody's, unless one is what all were sent.
        is_update = self.work is not None and digest in _updates(self.work) - self._ordered(self.work)
        return not is_update and self._store.has(digest)

    def path(self, digest: str) -> Path:
        """Where the blob ``digest`` is."""
        return self._store.path(digest)

    def open(self, digest: str) -> BufferedReader:
        """The blob ``digest``, open for reading."""
        return self.path(digest).open("rb")

    # updates on their way in

    def own(self, device: str, assignment_id: str) -> SitePart | None:
        """The device's open part of the work in hand; else the device is told what has become of it."""
        work = self.work
        if work is None or device not in work.record.examples or assignment_id != work.assignment_of(device):
            reason = f"assignment {assignment_id[:12]} is not of the work in hand"
            ack = Ack(assignment_id[:64], False, "unknown-assignment", reason)
        elif device in work.reports:
            is_counted = work.closed is None or device in work.closed
            ack = Ack(assignment_id, is_counted, "" if is_counted else "stale-round")
        elif device in work.refused:
            ack = Ack(assignment_id, False, "refused", work.refused[device][:1000])
        elif work.closed is not None:
            ack = Ack(assignment_id, False, "stale-round", "the site's update is made already")
        else:
            return SitePart(assignment_id, device, work.order.round, work)
        self.publisher.ack(device, ack)
        return None

    def partial(self, entry: SitePart, update: BlobRef) -> SitePartial:
        """A place in the store, with room for an update of a size that can be what was ordered."""
        limit = sum(spec.byte_count() for spec in self._specs(entry)) + MAX_HEADER_BYTES
        encoding = entry.work.order.encoding
        if not 0 < max(update.size, update.encoded_size) <= limit or update.encoding != encoding:
            raise UpdateRejected(
                f"device {entry.device}, round {entry.round}: update of {update.size} bytes, {update.encoding}; "
                f"at most {limit}, {encoding} ordered"
            )
        self._offered(entry, update.digest)
        partial = SitePartial(self._store, update)
        if not self.has(update.digest):
            self._store.reserve(max(0, update.encoded_size - partial.received))
        return partial

    def _offered(self, entry: SitePart, digest: str) -> None:
        """One update a device: what it offered before under another digest goes, unless it is somebody's update too."""
        if digest in self._ordered(entry.work):
            return  # an update that changes nothing: the blob is the order's, and stays
        before = self._offers.get(entry.device, digest)
        self._offers[entry.device] = digest
        if before != digest and before not in self._offers.values():
            self._expected.discard(before)
            self._store.drop(before)
        self._store.pin(digest)
        self._expected.add(digest)

    def _ordered(self, work: SiteWork) -> set[str]:
        """Blobs that the devices work from."""
        order = work.order
        refs = {ref.digest for ref in order.blobs}
        if not self._store.has(order.artifact.digest):
            return refs
        manifest = ArtifactManifest.from_bytes(self.path(order.artifact.digest).read_bytes())
        return refs | {file.sha256 for file in manifest.files}

    def has(self, digest: str) -> bool:
        """Whether the store has it."""
        return self._store.has(digest)

    def examples(self, entry: SitePart) -> int:
        """As many as the order was given for, or more since."""
        hello = self._devices.hello(entry.device)
        return max(entry.work.record.examples[entry.device], 0 if hello is None else hello.num_examples)

    def check(self, entry: SitePart, digest: str, where: str) -> None:
        """Tensor by tensor."""
        check_update(self._store.path(digest), self._specs(entry), where=where)

    def record(self, entry: SitePart, report: TrainReport) -> None:
        """Beside the work."""
        self._store.pin(report.update.digest)
        entry.work.count(report)
        self.publisher.forget(report.update.digest)  # no other device's to read from now on
        missing = len(entry.work.open_devices())
        log.info("%s: update of %d examples is in, %d to come", entry.device, report.num_examples, missing)

    def reject(self, entry: SitePart, error: UpdateRejected) -> None:
        """Beside the work."""
        entry.work.refuse(entry.device, str(error)[:1000])

    def _specs(self, entry: SitePart) -> list[TensorSpec]:
        order = entry.work.order
        return upload_specs(order, self._store.path(order.weights.digest))


def _updates(work: SiteWork) -> set[str]:
    return {report.update.digest for report in work.reports.values()}
