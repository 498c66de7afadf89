"""A relay between a scripted coordinator and scripted devices, which fetch, add a number to the weights and upload."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edge.contracts.envelope import Envelope, unseal
from edge.contracts.messages import Accept, Ack, Block, Error, Get, Grant, Hello
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import decode_tensors, encode_tensors, read_tensor_file
from edge.supervisor.outbox import Outbox
from edge.transfer.artifact_store import ArtifactStore
from edge.transfer.fetcher import OrderFetch
from edge.transfer.uploader import Uploader
from edge.transport.base import Connected, Event, Received, Transport
from profiles.device import DeviceProfile
from tests.builders import train_report
from tests.edge.tiny_artifact import TinyJob, tiny_job

SITE, RELAY = "hall-devices", "hall"
Change = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


class ScriptedDevice:
    """One device of the site, in a thread of its own.

    Attributes:
        orders: every order it got, repeated ones included; ``acks`` and ``errors`` likewise.
        trained: assignment ids it has trained.
        is_working: False leaves orders unanswered from the training on.
        change: what it makes of the weights; ``describe`` of its report.
    """

    def __init__(
        self, name: str, transport: Transport, folder: Path, *, examples: int, add: float = 0.0, **profile: Any
    ) -> None:
        self.name, self.examples = name, examples
        self.envelopes: list[Envelope] = []
        self.orders: list[WorkOrder] = []
        self.acks: list[Ack] = []
        self.errors: list[Error] = []
        self.trained: list[str] = []
        self.is_working = threading.Event()
        self.is_working.set()
        self.add = np.float32(add)
        self._profile = profile
        self.change: Change = lambda weights: {name: value + self.add for name, value in weights.items()}
        self.describe: Callable[[TrainReport], TrainReport] = lambda report: report
        self._folder = folder
        self._store = ArtifactStore(folder)
        self._transport = transport
        self._outbox = Outbox(transport, SITE, name)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._fetch: OrderFetch | None = None
        self._uploader: Uploader | None = None
        self._order: WorkOrder | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._transport.start(self._events.put)
        self._thread.start()

    def stop(self) -> None:
        self._events.put(None)
        self._thread.join(10)
        self._forget()
        self._outbox.close("test over")
        self._store.close()

    def send(self, kind: str, body: Any) -> None:
        self._outbox.send(kind, body)

    def profile(self) -> DeviceProfile:
        idle = {"onnxruntime": 60_000_000}
        fields = {"device": self.name, "trainer_idle_bytes": idle, "budget_bytes": 10**9, **self._profile}
        return DeviceProfile(**fields)

    def hello(self) -> None:
        self.send(
            "hello",
            Hello(
                device=self.name,
                agent_version="0",
                profile=self.profile(),
                runtimes={"onnxruntime": "1"},
                num_examples=self.examples,
            ),
        )

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=0.05)
            except queue.Empty:
                self._tick()
                continue
            if event is None:
                return
            if isinstance(event, Connected):
                self._outbox.is_connected = True
                self.hello()
            elif isinstance(event, Received):
                self._take(unseal(event.payload))
            self._tick()

    def _take(self, envelope: Envelope) -> None:
        now = time.monotonic()
        if envelope.kind == "hello":
            self.hello()
        elif envelope.kind == "order":
            order = envelope.read(WorkOrder)
            self.envelopes.append(envelope)
            self.orders.append(order)
            self.send("accept", Accept(order.assignment_id))
            if self._order is None or self._order.assignment_id != order.assignment_id:
                self._forget()
                self._order = order
                self._fetch = OrderFetch(order, self._store, runtime="onnxruntime", ask=self._ask)
                self._fetch.start(now)
            elif self._uploader is not None:
                self._uploader.reconnected(now)
        elif envelope.kind == "block" and self._fetch is not None:
            self._fetch.received(envelope.read(Block), now)
        elif envelope.kind == "grant" and self._uploader is not None:
            self._uploader.granted(envelope.read(Grant), now)
        elif envelope.kind == "error":
            self.errors.append(envelope.read(Error))
        elif envelope.kind == "ack":
            ack = envelope.read(Ack)
            self.acks.append(ack)
            if self._order is not None and ack.assignment_id == self._order.assignment_id:
                self._forget()

    def _forget(self) -> None:
        if self._fetch is not None:
            self._fetch.close()
        self._order = self._fetch = self._uploader = None

    def _ask(self, get: Get) -> None:
        self._outbox.send("get", get, 0)

    def _tick(self) -> None:
        now, order = time.monotonic(), self._order
        if self._uploader is not None:
            self._uploader.tick(now)
        elif self._fetch is not None and order is not None:
            self._fetch.tick(now)
            if self._fetch.complete_manifest() is not None and self.is_working.is_set():
                self._train(order, now)

    def _train(self, order: WorkOrder, now: float) -> None:
        weights = read_tensor_file(self._store.path(order.weights.digest), where="weights")
        data = encode_tensors(self.change({name: weights[name] for name in order.upload}))
        path = self._folder / "update"
        path.write_bytes(data)
        self.trained.append(order.assignment_id)
        ref = BlobRef(self._store.put(data), len(data), "raw", len(data))
        report = train_report(
            order.assignment_id,
            self.name,
            order.round,
            num_examples=self.examples,
            steps=4,
            loss=float(self.examples),
            metrics={"accuracy": 0.5},
            step_ms_p50=float(self.examples),
            step_ms_p95=9.0,
            trainer_peak_bytes=1000 * self.examples,
            supervisor_peak_bytes=10,
            trainer_idle_bytes=5,
            budget_bytes=10**9,
            runtime="onnxruntime 1",
            bytes_down=0,
            bytes_up=len(data),
            update=ref,
            wall_s=0.1,
        )
        self._uploader = Uploader(self.describe(report), path, self._outbox.send, now)


def site_job(**fields: Any) -> TinyJob:
    """A tiny job for the relay, its updates summable."""
    job = tiny_job(device=RELAY, **fields)
    job.order = msgspec.structs.replace(job.order, summable=True)
    return job


def expected_mean(job: TinyJob, *devices: ScriptedDevice) -> dict[str, np.ndarray]:
    """By hand: what devices that add a number make of the weights, weighted by their examples, in float64."""
    total = sum(device.examples for device in devices)
    changed = [(device.change({n: job.weights[n] for n in job.order.upload}), device.examples) for device in devices]
    return {
        name: (sum(tensors[name].astype(np.float64) * n for tensors, n in changed) / total).astype(np.float32)
        for name in job.order.upload
    }


def assert_is(update: bytes, mean: dict[str, np.ndarray]) -> None:
    """The update holds exactly the bits of ``mean``."""
    found = decode_tensors(update, where="the site's update")
    assert {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in mean.items()}
