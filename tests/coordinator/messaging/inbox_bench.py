"""An inbox over a ledger and a blob store on disk and the in-memory broker, for tests; one thread, by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.messaging.cohort import Cohort
from coordinator.messaging.inbox import Inbox
from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.messages import (
    BODIES,
    Hello,
    Offer,
    Put,
)
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import TensorSpec
from edge.serving.publisher import Publisher
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from profiles.device import DeviceProfile
from tests.contracts import samples
from tests.contracts.samples import MANIFEST

FEDERATION = "fed"
REPORT = msgspec.structs.replace(samples.REPORT, evaluation=msgspec.UNSET)
"""Of a run that scores nothing on its devices: they hold no examples out."""

DEVICES = ("pi-1", "pi-2")
SHAPE = (10, 64)
UPDATE = encode_tensors({"fc1.weight": np.full(SHAPE, 0.5, np.float32)})


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def ref_of(data: bytes) -> BlobRef:
    return BlobRef(digest_of(data), len(data), "raw", len(data))


class MessageLoop:
    """A coordinator without a round: one open order per device, and what every device was sent."""

    def __init__(self, folder: Path, ledger: Ledger, check: Callable[[str, Envelope], None] | None = None) -> None:
        self.ledger = ledger
        self.blobs = BlobStore(folder / "blobs")
        self.cohort = Cohort()
        self.said: list[str] = []
        self.points: list[str] = []
        self.sent: list[tuple[str, str, Any]] = []
        broker = InMemoryBroker()
        self._devices = InMemoryTransport(broker, subscriptions=(f"{topics.PREFIX}/{FEDERATION}/#",))
        self._devices.start(self._take)
        transport = InMemoryTransport(broker, subscriptions=())
        transport.start(lambda event: None)
        self.publisher = Publisher(FEDERATION, self.blobs, transport)
        self.inbox = Inbox(
            FEDERATION,
            ledger=ledger,
            blobs=self.blobs,
            cohort=self.cohort,
            publisher=self.publisher,
            remaining_s=lambda: 12.5,
            say=self.said.append,
            on_point=self.points.append,
            check=check,
        )
        manifest = msgspec.structs.replace(
            MANIFEST, tensors=(*MANIFEST.tensors, TensorSpec("fc1.bias", (10,), "float32", "parameter"))
        ).to_bytes()
        self.artifact = ref_of(manifest)
        self.blobs.put(manifest)
        ledger.blobs.add(self.artifact.digest, self.artifact.size)
        self.weights = self.blobs.put(b"weights")
        self.orders = {device: self._order(device) for device in DEVICES}
        ledger.rounds.plan(0, 0, deadline_s=60, assignments=[self._assignment(order) for order in self.orders.values()])
        ledger.rounds.move(0, 0, "published")

    def _order(self, device: str) -> WorkOrder:
        return WorkOrder(
            assignment_id=assignment_id(FEDERATION, 0, device, 0),
            federation=FEDERATION,
            device=device,
            round=0,
            attempt=0,
            artifact=self.artifact,
            weights=BlobRef(self.weights, 7, "raw", 7),
            schedule=Schedule(epochs=1),
            batch=16,
            last_batch="drop",
            data_seed=1,
            hyper={},
            upload=("fc1.weight",),
            peak_bytes=100,
        )

    def _assignment(self, order: WorkOrder) -> Assignment:
        return Assignment(
            assignment_id=order.assignment_id,
            round=0,
            attempt=0,
            device=order.device,
            level="full",
            cut={},
            artifact_digest=self.artifact.digest,
            weights_digest=self.weights,
            order=encode_msgpack(order),
        )

    def _take(self, event: Any) -> None:
        payload = getattr(event, "payload", None)
        if payload is not None:
            device, kind = event.topic.split("/")[-2:]
            envelope = unseal(payload)
            body = None if kind == "hello" else envelope.read(BODIES[kind])
            self.sent.append((device, kind, body))

    def gets(self, device: str, kind: str, body: Any) -> list[tuple[str, Any]]:
        """Hand in one message of ``device``; (kind, body) of everything it caused to be sent to that device."""
        self.sent.clear()
        self.inbox.handle(topics.up(FEDERATION, device, kind), seal(kind, body))
        assert all(to == device for to, _, _ in self.sent)
        return [(kind, body) for _, kind, body in self.sent]

    def id(self, device: str = "pi-1") -> str:
        return self.orders[device].assignment_id

    def state(self, device: str = "pi-1") -> str:
        entry = self.ledger.assignments.find(self.id(device))
        assert entry is not None
        return entry.state

    def upload(self, device: str = "pi-1", data: bytes = UPDATE, announced: BlobRef | None = None) -> BlobRef:
        ref = announced or ref_of(data)
        self.gets(device, "offer", Offer(self.id(device), ref))
        self.gets(device, "put", Put(self.id(device), ref.digest, 0, data))
        return ref

    def report(self, ref: BlobRef, **changes: Any) -> list[tuple[str, Any]]:
        """The report of pi-1, which says hello first where it has not."""
        if self.cohort.member("pi-1") is None:
            self.cohort.greet(hello("pi-1", num_examples=REPORT.num_examples))
        own = {"assignment_id": self.id(), "device": "pi-1", "round": 0, "update": ref}
        return self.gets("pi-1", "report", msgspec.structs.replace(REPORT, **{**own, **changes}))


def hello(device: str, **changes: Any) -> Hello:
    profile = DeviceProfile(device=device, budget_bytes=160 * 2**20)
    given: dict[str, Any] = {"device": device, "agent_version": "0", "profile": profile, "runtimes": {}}
    return Hello(**{**given, "num_examples": 7, **changes})
