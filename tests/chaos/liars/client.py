"""A party's own client of the protocol: it connects, says hello, takes orders and fetches weights; what it answers to
an order is :mod:`tests.chaos.liars.lies`'. One thread; whatever is repeated is repeated every :data:`REPEAT_S`."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from edge.contracts import topics
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.errors import ApportionError
from edge.contracts.messages import BODIES, Accept, Ack, Block, Bye, Get, Hello, Offer, Put
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.tensor_file import decode_tensors, encode_tensors
from edge.transport.base import Connected, Event, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from profiles.device import DeviceProfile
from tests.builders import train_report

REPEAT_S = 0.7
HEARTBEAT_S = 5.0
BLOCK_BYTES = 131_072
EXAMPLES = 9
RUNTIME = "onnxruntime"


class Client:
    """The connection of ``device`` to ``federation``.

    Attributes:
        order: the newest one; None before the first.
        acks: by assignment id, in order of arrival.
        calls: how often a coordinator asked who is there: each process does at its start.
    """

    def __init__(self, url: str, federation: str, device: str) -> None:
        self.federation, self.device = federation, device
        self.order: WorkOrder | None = None
        self.orders: dict[str, WorkOrder] = {}
        self.acks: dict[str, list[Ack]] = {}
        self.examples = EXAMPLES
        self.calls = 0
        self._weights: dict[str, bytes] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._transport = MqttTransport(
            parse_broker(url),
            client_id=f"{federation}/{device}",
            subscriptions=topics.device_filters(federation, device),
            connect_timeout_s=30.0,
        )

    def start(self) -> None:
        """Connect; tried again for ever once it was made."""
        self._transport.start(self._events.put)

    def take(self, timeout_s: float) -> bool:
        """Use what has come; whether something has."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return False
        if isinstance(event, Connected):
            self.hello()
        elif isinstance(event, Received):
            self._take(unseal(event.payload))
        return True

    def _take(self, envelope: Envelope) -> None:
        if envelope.kind == "hello":
            self.calls += 1
            self.hello()
            return
        body = envelope.read(BODIES[envelope.kind])
        match body:
            case WorkOrder():
                if body.assignment_id not in self.orders:
                    tell(f"order {body.assignment_id[:12]} of round {body.round}.{body.attempt}")
                    self.orders[body.assignment_id] = self.order = body
            case Block() if body.offset == len(self._weights.get(body.digest, b"")):
                self._weights[body.digest] = self._weights.get(body.digest, b"") + body.data
            case Ack():
                tell(f"told {body.assignment_id[:12]} accepted={body.accepted} {body.code} {body.reason[:200]}")
                self.acks.setdefault(body.assignment_id, []).append(body)

    # what is said

    def say(self, kind: str, body: Any, *, qos: int = 1) -> None:
        """One message, on the own topic of its kind."""
        self.say_bytes(kind, seal(kind, body), qos=qos)

    def say_bytes(self, kind: str, payload: bytes, *, qos: int = 1) -> None:
        """Any bytes there."""
        self.publish(topics.up(self.federation, self.device, kind), payload, qos=qos)

    def publish(self, topic: str, payload: bytes, *, qos: int = 1) -> None:
        """Any bytes anywhere."""
        self._transport.publish(topic, payload, qos=qos)  # type: ignore[arg-type]

    def hello_body(self, **changes: Any) -> Hello:
        """A hello that is in order but for ``changes``."""
        profile = DeviceProfile(
            device=self.device,
            budget_bytes=0,
            supervisor_idle_bytes=20_000_000,
            trainer_idle_bytes={RUNTIME: 40_000_000},
        )
        fields = {"device": self.device, "agent_version": "0", "profile": profile, "runtimes": {RUNTIME: "1"}}
        return Hello(**{**fields, "num_examples": self.examples, **changes})  # type: ignore[arg-type]

    def hello(self) -> None:
        """Say who we are, as it should be."""
        self.say("hello", self.hello_body())

    def accept(self, order: WorkOrder) -> None:
        """Take an order."""
        self.say("accept", Accept(order.assignment_id))

    def bye(self) -> None:
        """Say that we go, and stay connected."""
        self.say("bye", Bye("gone"))

    def weights(self, order: WorkOrder) -> dict[str, np.ndarray] | None:
        """What the order starts from; None while some of it is to come: it was asked for."""
        ref = order.weights
        data = self._weights.get(ref.digest, b"")
        if len(data) < ref.encoded_size:
            for offset in range(len(data), ref.encoded_size, 65_536):
                self.say("get", Get(ref.digest, "raw", offset, 65_536))
            return None
        found = decode_tensors(data, where="weights")
        return {name: np.array(found[name]) for name in order.upload}

    def upload(self, order: WorkOrder, update: bytes | Mapping[str, np.ndarray], *, send: bytes = b"") -> BlobRef:
        """Offer and send an update, all at once; ``send`` in place of its bytes."""
        data = update if isinstance(update, bytes) else encode_tensors(update)
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data), "raw", len(data))
        self.say("offer", Offer(order.assignment_id, ref))
        sent = send or data
        for offset in range(0, len(sent), BLOCK_BYTES):
            piece = sent[offset : offset + BLOCK_BYTES]
            self.say("put", Put(order.assignment_id, ref.digest, offset, piece), qos=0)
        return ref

    def report(self, order: WorkOrder, update: BlobRef, **changes: Any) -> None:
        """A report that is in order but for ``changes``."""
        fields = {
            "num_examples": self.examples,
            "trainer_peak_bytes": 50_000_000,
            "supervisor_peak_bytes": 20_000_000,
            "trainer_idle_bytes": 40_000_000,
            "budget_bytes": 0,
            "runtime": RUNTIME,
            "bytes_up": update.size,
            "update": update,
        }
        self.say("report", train_report(order.assignment_id, self.device, order.round, **fields | changes))

    def is_settled(self, order: WorkOrder) -> bool:
        """Whether the coordinator has said what has become of the order."""
        return bool(self.acks.get(order.assignment_id))

    def is_dismissed(self, order: WorkOrder) -> bool:
        """Whether nobody waits for it any longer."""
        return any(ack.code == "stale-round" for ack in self.acks.get(order.assignment_id, []))


def tell(what: str) -> None:
    """A line in this party's log."""
    print(f"{time.monotonic():.3f} {what}", flush=True)


def run(client: Client, behave: Any) -> None:
    """Lie until killed: ``behave(order)`` is called for the newest order again and again."""
    client.start()
    next_at = beat_at = 0.0
    while True:
        try:
            while client.take(0.1):
                if time.monotonic() >= next_at:
                    break
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + HEARTBEAT_S
                behave.idle()
            if client.order is not None and now >= next_at:
                next_at = now + REPEAT_S
                behave.ordered(client.order)
        except ApportionError as error:
            tell(f"{type(error).__name__}: {error}")
