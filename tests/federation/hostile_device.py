"""A device that speaks the real protocol and does in each round whatever a test wants."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edge.contracts import topics
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.messages import BODIES, Ack, Block, Error, Get, Grant, Hello, Offer, Put
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.tensor_file import decode_tensors, encode_tensors
from edge.transport.base import Connected, Event, Received
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from profiles.device import DeviceProfile
from tests.builders import train_report

Tensors = Mapping[str, np.ndarray]
WAIT_S = 20.0
AGAIN_S = 2.0


class NothingCame(AssertionError):
    """A device waited for an answer in vain."""


class HostileDevice:
    """Runs in a thread of its own; ``behave(order)`` is called there for every new order, once per assignment.

    Attributes:
        acks: by assignment id, in order of arrival.
        errors: what the coordinator could not use.
        failures: what went wrong in ``behave``.
    """

    def __init__(
        self,
        broker: InMemoryBroker,
        federation: str,
        device: str,
        behave: Callable[[WorkOrder], None],
        *,
        budget_bytes: int = 0,
        runtime: str = "onnxruntime",
    ) -> None:
        self.device = device
        self.acks: dict[str, list[Ack]] = {}
        self.errors: list[Error] = []
        self.grants: list[Grant] = []
        self.failures: list[BaseException] = []
        self._broker = broker
        self._federation = federation
        self._behave = behave
        self._budget_bytes = budget_bytes
        self._runtime = runtime
        self._transport = InMemoryTransport(broker, subscriptions=topics.device_filters(federation, device))
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[WorkOrder | None] = queue.SimpleQueue()
        self._blocks: queue.SimpleQueue[Block] = queue.SimpleQueue()
        self._seen: set[str] = set()
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._work)]

    def __enter__(self) -> HostileDevice:
        for thread in self._threads:
            thread.start()
        self._transport.start(self._events.put)
        return self

    def __exit__(self, *exc: object) -> None:
        self._transport.stop()
        self._events.put(None)
        self._orders.put(None)
        for thread in self._threads:
            thread.join(WAIT_S)
        if exc[0] is None:
            assert not self.failures, self.failures

    def send(self, kind: str, body: Any, *, device: str = "") -> None:
        """One message, on the topic of ``device``."""
        self.send_bytes(kind, seal(kind, body), device=device)

    def send_bytes(self, kind: str, payload: bytes, *, device: str = "") -> None:
        """Any bytes, past the size check of an honest transport."""
        self._broker.route(topics.up(self._federation, device or self.device, kind), payload, 1)

    def hello(self) -> None:
        """Say who we are: idle sizes as those of a small machine."""
        profile = DeviceProfile(
            device=self.device,
            budget_bytes=self._budget_bytes,
            supervisor_idle_bytes=20_000_000,
            trainer_idle_bytes={self._runtime: 40_000_000},
        )
        runtimes = {self._runtime: "1"}
        self.send(
            "hello",
            Hello(device=self.device, agent_version="0", profile=profile, runtimes=runtimes, num_examples=9),
        )

    def weights(self, order: WorkOrder) -> dict[str, np.ndarray]:
        """The tensors the order starts from."""
        data = b""
        while len(data) < order.weights.size:
            self.send("get", Get(order.weights.digest, "raw", len(data), 65_536))
            data += self._blocks.get(timeout=WAIT_S).data
        return {name: np.array(value) for name, value in decode_tensors(data, where="weights").items()}

    def update(self, order: WorkOrder) -> dict[str, np.ndarray]:
        """An update that is in order: the weights as they came, a little smaller."""
        weights = self.weights(order)
        return {name: weights[name] * np.float32(0.99) for name in order.upload}

    def upload(self, order: WorkOrder, tensors: Tensors, *, send: bytes | None = None) -> BlobRef:
        """Upload ``tensors`` as one block; ``send`` in place of their bytes."""
        data = encode_tensors(tensors)
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data), "raw", len(data))
        self.send("offer", Offer(order.assignment_id, ref))
        self.send("put", Put(order.assignment_id, ref.digest, 0, data if send is None else send))
        return ref

    def report(self, order: WorkOrder, update: BlobRef, **changes: Any) -> None:
        """A report that is in order but for ``changes``."""
        fields = {
            "num_examples": 9,
            "trainer_peak_bytes": 50_000_000,
            "supervisor_peak_bytes": 20_000_000,
            "trainer_idle_bytes": 40_000_000,
            "budget_bytes": 0,
            "runtime": self._runtime,
            "bytes_up": update.size,
            "update": update,
        }
        self.send("report", train_report(order.assignment_id, self.device, order.round, **fields | changes))

    def finish(self, order: WorkOrder) -> Ack:
        """Do what was ordered, as far as anyone can see; the acknowledgement.

        What is not acknowledged is sent again, as every device does: bytes that were in the store when they were
        offered may be let go of before the report.
        """
        tensors = self.update(order)
        for _ in range(round(WAIT_S / AGAIN_S)):
            self.report(order, self.upload(order, tensors))
            with contextlib.suppress(NothingCame):
                return self.wait_ack(order, within_s=AGAIN_S)
        raise NothingCame(f"{self.device}: no acknowledgement; errors {self.errors}")

    def wait_ack(self, order: WorkOrder, count: int = 1, within_s: float = WAIT_S) -> Ack:
        """The ``count``-th acknowledgement of the order's assignment."""
        return self._wait(lambda: self.acks.get(order.assignment_id, [])[count - 1 : count], within_s)[0]

    def wait_error(self, text: str) -> Error:
        """The first error whose message holds ``text``."""
        return self._wait(lambda: [e for e in self.errors if text in e.message])[0]

    def wait_grant(self, order: WorkOrder, count: int) -> Grant:
        """The ``count``-th grant of the order's assignment."""
        return self._wait(lambda: [g for g in self.grants if g.assignment_id == order.assignment_id][count - 1 :])[0]

    def _wait(self, found: Callable[[], list[Any]], within_s: float = WAIT_S) -> list[Any]:
        with self._changed:
            if got := self._changed.wait_for(found, within_s):
                return got
        raise NothingCame(f"{self.device}: nothing came; errors {self.errors}, acks {self.acks}")

    def _listen(self) -> None:
        while (event := self._events.get()) is not None:
            if isinstance(event, Connected):
                self.hello()
            elif isinstance(event, Received):
                self._take(unseal(event.payload))

    def _take(self, envelope: Envelope) -> None:
        if envelope.kind == "hello":
            self.hello()
            return
        body = envelope.read(BODIES[envelope.kind])
        with self._changed:
            match body:
                case WorkOrder() if body.assignment_id not in self._seen:
                    self._seen.add(body.assignment_id)
                    self._orders.put(body)
                case Block():
                    self._blocks.put(body)
                case Ack():
                    self.acks.setdefault(body.assignment_id, []).append(body)
                case Error():
                    self.errors.append(body)
                case Grant():
                    self.grants.append(body)
            self._changed.notify_all()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._behave(order)
            except BaseException as error:
                self.failures.append(error)
