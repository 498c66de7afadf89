"""One light device: the wire protocol's device side without a training runtime. No I/O: messages come and go by calls.

It says hello, takes orders, checks them, fetches the weights block by block, makes its update with
:mod:`coordinator.loadtest.stand_in`, offers it, sends what is granted, reports, and forgets it at the acknowledgement.
What is not answered is repeated, as agents do. What it reports of training is zeros: it has measured nothing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.loadtest.connection import SocketBytes
from coordinator.loadtest.figures import Figures
from coordinator.loadtest.light_messages import WorkInHand, hello_of, report_of
from coordinator.loadtest.stand_in import Shelf
from edge.contracts import topics
from edge.contracts.codec import decode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, Envelope, unseal
from edge.contracts.errors import ApportionError, DeviceRefused, MessageRejected
from edge.contracts.messages import Accept, Ack, Block, Error, Grant, Heartbeat, Offer, Put, Refuse
from edge.contracts.plan import BlobRef, WorkOrder, assignment_id
from edge.transport.blocks import Download, Upload

REPEAT_S, PROBE_LOST_S = 5.0, 30.0
PREFIX = "load-"


class Link(Protocol):
    """What a device says through, and how its link is cut."""

    def send(self, kind: str, body: Any, *, qos: int, message_id: str | None = None) -> None:
        """Publish a message of ``kind``."""

    def cut(self) -> None:
        """End the connection without a goodbye; it is made again."""


@dataclass(frozen=True)
class Ways:
    """How the light devices of a test behave.

    Attributes:
        runtimes: runtime name -> version that they say they have.
        cuts: how often the link of each is cut within a transfer, each way.
        fetches: whether each fetches the weights for itself; else one of a process does, for all of it.
    """

    federation: str
    runtimes: dict[str, str]
    cuts: int = 0
    fetches: bool = True


class LightDevice:
    """One device; every method returns at once.

    Args:
        trains: called with this device when it may make its update; :meth:`train` is called back, not at once.
        figures: counts of the process.
        count: bytes of this device's sockets.
    """

    __slots__ = (
        "_figures",
        "_probe",
        "_profile",
        "_settled",
        "_shelf",
        "_trains",
        "_ways",
        "_work",
        "count",
        "link",
        "name",
    )

    def __init__(
        self, name: str, ways: Ways, shelf: Shelf, figures: Figures, *, trains: Callable[[LightDevice], None]
    ) -> None:
        self.name = name
        self.count = SocketBytes()
        self.link: Link | None = None
        self._ways, self._shelf, self._figures, self._trains = ways, shelf, figures, trains
        self._work: WorkInHand | None = None
        self._settled = ""
        self._probe: tuple[str, float] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has an order in hand, and :meth:`tick` something to do."""
        return self._work is not None

    def hello(self) -> None:
        """Say who is here; after every connect, and when the coordinator asks."""
        order = "" if self._work is None else self._work.order.assignment_id
        self._send("hello", hello_of(self.name, self._ways.runtimes, self._state(), order))

    def heartbeat(self) -> None:
        """Still here."""
        self._send(
            "heartbeat",
            Heartbeat(state=self._state(), assignment_id="" if self._work is None else self._work.order.assignment_id),
        )

    def probe(self, now: float) -> None:
        """Begin a control round trip: an ``accept`` of an assignment that nobody made, answered with ``ack``."""
        if self._probe is not None and now - self._probe[1] > PROBE_LOST_S:
            self._figures.tally("probes lost")
            self._probe = None
        if self._probe is None:
            self._probe = (hashlib.sha256(f"{self.name} {now}".encode()).hexdigest(), now)
            self._send("accept", Accept(self._probe[0]))

    def receive(self, topic: str, payload: bytes, now: float) -> float:
        """Use a message; seconds within which a ``hello`` is wanted, negative when none is (0: at once)."""
        try:
            envelope = unseal(payload)
            if envelope.kind == "hello":
                return 0.0 if topic == topics.down(self._ways.federation, self.name, "hello") else 1.0
            self._use(envelope, len(payload), now)
        except ApportionError as error:
            self._figures.tally(f"refused {error.code}")
            self._send("error", Error(error.code, str(error)[:1000]))
        return -1.0

    def tick(self, now: float) -> None:
        """Repeat what was not answered."""
        work = self._work
        if work is None:
            return
        if work.download is not None:
            self._ask(work, now)
        elif work.upload is not None:
            self._go_on(work, now)

    def reconnected(self, now: float) -> None:
        """A new connection: hello, and whatever was on its way again."""
        self.hello()
        self._probe = None
        work = self._work
        if work is None:
            return
        if work.download is not None:
            work.download.reconnected(now)
        elif work.upload is not None:
            work.upload.reconnected(now)
            work.repeat_at = now
            work.offered_at = work.reported_at = None
        self.tick(now)

    def train(self, now: float) -> None:
        """Make the update, and offer it; takes some milliseconds a megabyte."""
        work = self._work
        if work is None or work.upload is not None:
            return
        order = work.order
        try:
            data = self._shelf.stand_in(order).update(order)
        except ApportionError as error:
            self._refuse(order, error)
            return
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data), "raw", len(data))
        work.upload = Upload(ref, now)
        work.repeat_at = now
        work.report = report_of(order, ref)
        work.report_id = uuid.uuid4().hex
        self._go_on(work, now)

    def _state(self) -> Any:
        if self._work is None:
            return "idle"
        return "uploading" if self._work.upload is not None else "fetching"

    def _use(self, envelope: Envelope, size: int, now: float) -> None:
        kind = envelope.kind
        if kind == "order":
            self._ordered(decode_msgpack(bytes(envelope.body), WorkOrder, limit=MAX_MESSAGE_BYTES), size, now)
        elif kind == "block":
            self._received(envelope.read(Block), now)
        elif kind == "grant":
            self._granted(envelope.read(Grant), now)
        elif kind == "ack":
            self._acknowledged(envelope.read(Ack), now)
        elif kind == "error":
            error = envelope.read(Error)
            self._figures.tally(f"error {error.code[:40]}")
        else:
            self._figures.tally("unknown kinds")

    def _ordered(self, order: WorkOrder, size: int, now: float) -> None:
        """Take an order, or say once more that it was taken."""
        try:
            self._check(order)
        except DeviceRefused as error:
            self._refuse(order, error)
            return
        if order.assignment_id == self._settled:
            self._refuse(order, DeviceRefused(f"round {order.round} is settled here"), "replayed-order")
            return
        self._send("accept", Accept(order.assignment_id))
        if self._work is not None and self._work.order.assignment_id == order.assignment_id:
            return
        self._figures.tally("orders")
        work = WorkInHand(order, self.count.sent, self.count.received - size)
        self._work = work
        if not self._ways.fetches and order.weights.digest in self._shelf:
            self._trains(self)
            return
        work.download = Download(order.weights, 0, now)
        self._ask(work, now)

    def _check(self, order: WorkOrder) -> None:
        """Check that the order is one for this device; MessageRejected or DeviceRefused otherwise."""
        expected = assignment_id(self._ways.federation, order.round, self.name, order.attempt, order.run)
        if (order.federation, order.device, order.assignment_id) != (self._ways.federation, self.name, expected):
            raise MessageRejected(
                f"device {self.name}: order of round {order.round} for '{order.device[:64]}' of "
                f"'{order.federation[:64]}' under {order.assignment_id[:12]}, {expected[:12]} expected; not used"
            )
        if order.weights.encoding != "raw" or not 0 < order.weights.size == order.weights.encoded_size:
            raise DeviceRefused(
                f"device {self.name}: weights of {order.weights.size} bytes as {order.weights.encoding}"
            )

    def _refuse(self, order: WorkOrder, error: ApportionError, code: str = "") -> None:
        self._figures.tally(f"refused {code or error.code}")
        self._send(
            "refuse", Refuse(assignment_id=order.assignment_id, code=code or error.code, reason=str(error)[:1000])
        )
        if self._work is not None and self._work.order.assignment_id == order.assignment_id:
            self._work = None

    def _ask(self, work: WorkInHand, now: float) -> None:
        assert work.download is not None
        for get in work.download.requests(now):
            self._send("get", get)

    def _received(self, block: Block, now: float) -> None:
        work = self._work
        if work is None or work.download is None or block.digest != work.order.weights.digest:
            return
        data = work.download.receive(block, now)
        if (is_same := self._shelf.agrees(block.digest, work.download.offset - len(data), data)) is None:
            work.pieces.append(data)
        work.is_whole = work.is_whole and is_same is not False
        if not work.download.is_complete:
            self._cut_at(work.download.offset, work.download.total)
            self._ask(work, now)
            return
        size, digest = work.download.total, work.order.weights.digest
        # Another device of this process may have finished meanwhile: what came since was compared with its bytes.
        is_whole = work.is_whole and (digest in self._shelf or self._shelf.keep(digest, b"".join(work.pieces)))
        work.pieces, work.download, work.is_whole = [], None, True
        if not is_whole:
            self._figures.tally("corrupt downloads")
            work.download = Download(work.order.weights, 0, now)
            self._ask(work, now)
            return
        self._figures.payload_down += size
        self._trains(self)

    def _granted(self, grant: Grant, now: float) -> None:
        work = self._work
        if work is None or work.upload is None or grant.digest != work.upload.ref.digest:
            return
        was_complete = work.upload.is_complete
        work.upload.granted(grant, now)
        if work.offered_at is not None:
            self._figures.trip("offer-grant", now - work.offered_at)
            work.offered_at = None
        if work.upload.is_complete and not was_complete:
            work.repeat_at = now
        self._go_on(work, now)

    def _acknowledged(self, ack: Ack, now: float) -> None:
        if self._probe is not None and ack.assignment_id == self._probe[0]:
            self._figures.trip("probe", now - self._probe[1])
            self._probe = None
            return
        work = self._work
        if work is None or ack.assignment_id != work.order.assignment_id:
            return
        self._figures.tally("acks" if ack.accepted else f"not accepted {ack.code[:40]}")
        if work.reported_at is not None:
            self._figures.trip("report-ack", now - work.reported_at)
        if ack.accepted and work.upload is not None:
            self._figures.payload_up += work.upload.total
        self._figures.wire_up += self.count.sent - work.sent_before
        self._figures.wire_down += self.count.received - work.received_before
        self._settled, self._work = ack.assignment_id, None

    def _go_on(self, work: WorkInHand, now: float) -> None:
        """Offer, send blocks, or report, whichever is due; the same order of things as ``edge.transfer.uploader``."""
        upload = work.upload
        assert upload is not None
        assert work.report is not None
        if upload.is_stalled(now):
            work.repeat_at = now
        if upload.is_complete:
            if now >= work.repeat_at:
                work.repeat_at = now + REPEAT_S
                work.reported_at = work.reported_at or now
                work.data = b""
                self._send("report", work.report, message_id=work.report_id)
        elif upload.is_offer_open and now >= work.repeat_at:
            work.repeat_at = now + REPEAT_S
            work.offered_at = work.offered_at or now
            upload.offered()
            self._send("offer", Offer(work.order.assignment_id, upload.ref))
        self._put(work, upload)

    def _put(self, work: WorkInHand, upload: Upload) -> None:
        for offset, length in upload.sends():
            if not work.data:
                # Made again rather than kept: a thousand devices that wait for their grants would hold a thousand.
                work.data = self._shelf.stand_in(work.order).update(work.order)
            piece = work.data[offset : offset + length]
            self._send("put", Put(work.order.assignment_id, upload.ref.digest, offset, piece), qos=0)
            self._cut_at(offset + length, upload.total)

    def _cut_at(self, reached: int, total: int) -> None:
        """Cut the link when a share of a transfer has just been passed: 1/4, 2/4 and 3/4 for three cuts."""
        cuts, work = self._ways.cuts, self._work
        if not cuts or work is None or self.link is None:
            return
        share = reached * (cuts + 1) // total
        if 0 < share <= cuts and (self._state(), share) not in work.cut_at:
            work.cut_at.add((self._state(), share))
            self._figures.tally("cuts")
            self.link.cut()

    def _send(self, kind: str, body: Any, *, qos: int = 1, message_id: str | None = None) -> None:
        if self.link is not None:
            self.link.send(kind, body, qos=qos, message_id=message_id)
