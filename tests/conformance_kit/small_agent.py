"""A small agent in this process, sound or with one fault: what the kit has to tell apart."""

from __future__ import annotations

import hashlib
import queue
import threading
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.conformance.connection import Connection
from edge.contracts import topics
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.errors import ApportionError, SignatureRejected
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Accept, Block, Bye, Get, Grant, Hello, Offer, Put, Refuse
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.signing import message_text
from edge.contracts.tensor_file import encode_tensors
from edge.identity.trust import Trust
from edge.runtimes import runtime
from edge.runtimes.weights_file import WeightsFile
from edge.training.batches import Examples
from edge.training.local_data import read_local_data
from edge.training.steps import train, uploaded
from edge.transport.base import Connected, LastWill, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from profiles.device import DeviceProfile


class SmallAgent:
    """An AgentDriver and the agent at once. It does one thing after the other, and knows short orders only.

    Args:
        fault: ``trains-twice``, ``batch-order``, ``follows-anyone``, ``forgets-blobs``, ``replays``, ``foreign-topic``,
            ``signs-nothing`` or ``wrong-names``; empty for none.
    """

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._blobs: dict[str, bytes] = {}
        self._settled: set[str] = set()
        self._thread: threading.Thread | None = None

    def start(self, connection: Connection) -> None:
        self._there = connection
        self._later: list[Envelope] = []
        self._reports: dict[str, tuple[str, TrainReport]] = {}
        self._events: queue.Queue[Any] = queue.Queue()
        self._trust = Trust.load(Path(connection.trust_file))
        if self._fault == "forgets-blobs":
            self._blobs.clear()
        self._transport = MqttTransport(
            parse_broker(connection.placeholders()["broker"]),
            client_id=connection.device,
            subscriptions=topics.device_filters(connection.federation, connection.device),
            will=LastWill(self._topic("bye"), self._sealed("bye", Bye("connection lost"))),
        )
        self._transport.start(self._events.put)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end((self._topic("bye"), self._sealed("bye", Bye("stopped")))) if self._thread else None

    def kill(self) -> None:
        self._end(None) if self._thread else None

    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def _end(self, farewell: tuple[str, bytes] | None) -> None:
        assert self._thread is not None
        self._events.put(None)
        self._thread.join(10)
        self._thread = None
        self._transport.stop(farewell)

    def _run(self) -> None:
        while (event := self._later.pop(0) if self._later else self._events.get()) is not None:
            if isinstance(event, Connected):
                self._hello()
            elif isinstance(event, Received | Envelope):
                envelope = event if isinstance(event, Envelope) else unseal(event.payload)
                if envelope.kind == "hello":
                    self._hello()
                elif envelope.kind == "ack":
                    self._settled.add(msgspec.msgpack.decode(bytes(envelope.body))["assignment_id"])
                elif envelope.kind == "order":
                    self._order(envelope)

    def _hello(self) -> None:
        profile = DeviceProfile(device=self._there.device)
        data = len(read_local_data(self._there.data))
        self._send(
            "hello",
            Hello(
                device=self._there.device,
                agent_version="1",
                profile=profile,
                runtimes={self._there.runtime: "1.20.0"},
                num_examples=data,
                block_bytes=65_536,
                window=1,
            ),
        )

    def _order(self, envelope: Envelope) -> None:
        order = envelope.read(WorkOrder)
        try:
            if self._fault != "follows-anyone":
                self._trust.check_order(order, bytes(envelope.body), envelope.signature)
        except SignatureRejected as error:
            self._refuse(order, error.code, str(error))
            return
        if order.assignment_id in self._settled and self._fault != "replays":
            self._refuse(order, "replayed-order", "settled before")
            return
        self._send("accept", Accept(order.assignment_id))
        if order.assignment_id in self._reports and self._fault not in ("trains-twice", "replays"):
            self._send("report", self._reports[order.assignment_id][1], self._reports[order.assignment_id][0])
            return
        try:
            self._work(order)
        except ApportionError as error:
            self._refuse(order, error.code, str(error))

    def _work(self, order: WorkOrder) -> None:
        data = self._fetched(order.artifact)
        self._trust.check_manifest(data, order.artifact_signature)
        manifest = ArtifactManifest.from_bytes(data)
        files = {f.name: self._fetched(BlobRef(f.sha256, f.size, "raw", f.size)) for f in manifest.files}
        weights = self._fetched(order.weights)
        constants = None if order.constants is None else self._fetched(order.constants)
        used = order
        if self._fault == "batch-order":
            used = msgspec.structs.replace(order, data_seed=order.data_seed ^ 1)
        with TemporaryDirectory() as name:
            folder = Path(name)
            for file, content in {**files, "weights": weights, "constants": constants or b""}.items():
                (folder / file).write_bytes(content)
            session = runtime(self._there.runtime).load(manifest, {f: folder / f for f in files}, threads=1)
            extra = folder / "constants" if constants else None
            session.load_state(WeightsFile(folder / "weights", where="test", constants=extra))
            examples = Examples(read_local_data(self._there.data), manifest)
            outcome = train(session, manifest, used, examples)
            tensors = {n: np.array(uploaded(session, n)) for n in order.upload}
        if self._fault == "wrong-names":
            tensors = {f"module.{n}": value for n, value in tensors.items()}
        update = encode_tensors(tensors)
        ref = BlobRef(hashlib.sha256(update).hexdigest(), len(update), "raw", len(update))
        self._send("offer", Offer(order.assignment_id, ref))
        while (grant := self._next("grant", Grant)).offset < len(update):
            piece = update[grant.offset : grant.offset + grant.block_bytes]
            self._send("put", Put(order.assignment_id, ref.digest, grant.offset, piece))
        report = TrainReport(
            assignment_id=order.assignment_id, device=order.device, round=order.round, num_examples=len(examples),
            steps=outcome.steps, loss=outcome.loss, metrics=outcome.metrics, step_ms_p50=outcome.step_ms_p50,
            step_ms_p95=outcome.step_ms_p95, trainer_peak_bytes=1, supervisor_peak_bytes=1, trainer_idle_bytes=1,
            budget_bytes=self._there.budget_mb << 20, over_budget=False, torch_loaded=False,
            runtime=self._there.runtime, bytes_down=0, bytes_up=len(update), update=ref,
            wall_s=uuid.uuid4().int / 2**128,
        )  # fmt: skip
        self._reports[order.assignment_id] = uuid.uuid4().hex, report
        self._send("report", report, self._reports[order.assignment_id][0])

    def _fetched(self, ref: BlobRef) -> bytes:
        if ref.digest not in self._blobs:
            data = b""
            while len(data) < ref.size:
                self._send("get", Get(ref.digest, "raw", len(data), min(65_536, ref.size - len(data))))
                data += self._next("block", Block).data
            self._blobs[ref.digest] = data
        return self._blobs[ref.digest]

    def _next(self, kind: str, body: type[Any]) -> Any:
        """The next message of ``kind``; others wait."""
        while True:
            event = self._events.get(timeout=20)
            if not isinstance(event, Received):
                continue
            envelope = unseal(event.payload)
            if envelope.kind == kind:
                return envelope.read(body)
            self._later.append(envelope)

    def _refuse(self, order: WorkOrder, code: str, reason: str) -> None:
        self._send("refuse", Refuse(assignment_id=order.assignment_id, code=code, reason=reason))

    def _send(self, kind: str, body: Any, message_id: str | None = None) -> None:
        topic = self._topic(kind)
        if self._fault == "foreign-topic" and kind == "offer":
            self._transport.publish(topics.up(self._there.federation, "somebody-else", kind), self._sealed(kind, body))
        self._transport.publish(topic, self._sealed(kind, body, message_id))

    def _topic(self, kind: str) -> str:
        return topics.up(self._there.federation, self._there.device, kind)

    def _sealed(self, kind: str, body: Any, message_id: str | None = None) -> bytes:
        identity = message_id or uuid.uuid4().hex

        def sign(packed: bytes) -> bytes:
            text = message_text(self._there.federation, self._there.device, kind, identity, packed)
            r, s = decode_dss_signature(self._key.sign(text, ec.ECDSA(SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")

        return seal(kind, body, message_id=identity, sign=None if self._fault == "signs-nothing" else sign)
