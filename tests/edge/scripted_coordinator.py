"""The coordinator's side of the wire, no more: serves blobs, grants uploads, acknowledges reports. For agent tests."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from edge.contracts import topics
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.messages import BODIES, Ack, Block, Error, Get, Grant, Offer, Put
from edge.contracts.plan import WorkOrder
from edge.contracts.report import TrainReport
from edge.transport.base import Connected, Event, Received, Transport

PUT_BYTES = 65_536


class ScriptedCoordinator:
    """Runs in a thread of its own over any transport.

    Attributes:
        blobs: what ``get`` is answered from, by digest; a test may change the bytes.
        seen: (kind, body) of every message, in order.
        updates: finished updates by assignment id.
        is_serving: False leaves ``get`` and ``offer`` unanswered.
        is_acking: False leaves reports unanswered.
    """

    def __init__(self, transport: Transport, *, federation: str = "fed", device: str = "dev-1") -> None:
        self.blobs: dict[str, bytes] = {}
        self.seen: list[tuple[str, Any]] = []
        self.updates: dict[str, bytes] = {}
        self.reports: dict[str, TrainReport] = {}
        self.is_serving = True
        self.is_acking = True
        self.on_get: Callable[[Get], None] = lambda get: None
        self._federation, self._device = federation, device
        self._transport = transport
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._received: dict[str, bytearray] = {}
        self._offers: dict[str, Offer] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._transport.start(self._events.put)
        self._thread.start()

    def stop(self) -> None:
        self._events.put(None)
        self._thread.join(5)
        self._transport.stop()

    def send(self, kind: str, body: Any, *, qos: Any = 1) -> None:
        self.send_bytes(kind, seal(kind, body), qos=qos)

    def send_bytes(self, kind: str, payload: bytes, *, qos: Any = 1) -> None:
        self._transport.publish(topics.down(self._federation, self._device, kind), payload, qos=qos)

    def order(self, order: WorkOrder) -> None:
        self.send("order", order)

    def wait_for(self, kind: str, *, timeout_s: float = 30.0, count: int = 1, where: Any = None) -> Any:
        """The ``count``-th message of ``kind`` (that satisfies ``where``)."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = [b for k, b in self.seen if k == kind and (where is None or where(b))]
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"no {kind} #{count} in {timeout_s} s; seen {[k for k, _ in self.seen][-30:]}")
                self._changed.wait(left)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.seen]

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            if isinstance(event, Received):
                self._take(unseal(event.payload))
            elif isinstance(event, Connected):
                with self._changed:
                    self.seen.append(("(connected)", None))

    def _take(self, envelope: Envelope) -> None:
        body = envelope.read(BODIES[envelope.kind])
        match body:
            case Get():
                self.on_get(body)
                if self.is_serving:
                    self._serve(body)
            case Offer():
                if self.is_serving:
                    self._offers[body.assignment_id] = body
                    self._received.setdefault(body.assignment_id, bytearray())
                    self._grant(body.assignment_id)
            case Put():
                got = self._received[body.assignment_id]
                if self.is_serving and body.offset == len(got):
                    got += body.data
                    self._grant(body.assignment_id)
            case TrainReport():
                self.updates[body.assignment_id] = bytes(self._received.get(body.assignment_id, b""))
                self.reports[body.assignment_id] = body
                if self.is_acking:
                    self.send("ack", Ack(body.assignment_id, True))
        with self._changed:
            self.seen.append((envelope.kind, body))
            self._changed.notify_all()

    def _serve(self, get: Get) -> None:
        data = self.blobs.get(get.digest)
        if data is None:
            self.send("error", Error("unknown-blob", f"no blob {get.digest[:12]}", get.digest))
            return
        self.send("block", Block(get.digest, get.offset, len(data), data[get.offset : get.offset + get.length]), qos=0)

    def _grant(self, assignment: str) -> None:
        offer = self._offers[assignment]
        offset = len(self._received[assignment])
        self.send("grant", Grant(assignment, offer.update.digest, offset, PUT_BYTES, 2))
