"""Everything that devices are sent: orders, blocks of blobs, grants, acknowledgements, errors. It decides nothing.

Control messages go with QoS 1 and are repeated by whoever needs the answer. Blocks and grants go with QoS 0: the device
asks again for what did not come, so a lost frame costs one request and a broker holds no queue of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Protocol

import msgspec

from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.errors import ApportionError
from edge.contracts.identity import KeyStatement, Signers
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Ack, Block, Error, Get, Grant
from edge.contracts.plan import WorkOrder
from edge.serving.budgets import Budgets
from edge.serving.traffic import ByteAccount, publication_bytes
from edge.transport.base import Qos, Transport

MAX_BLOCK_BYTES = 262_144


class Served(Protocol):
    """Blobs that devices may ask for, by digest."""

    def __contains__(self, digest: str) -> bool: ...
    def path(self, digest: str) -> Path: ...
    def open(self, digest: str) -> BufferedReader: ...


class Signer(Protocol):
    """Signs what devices check before they use it, by a coordinator's key or a site's."""

    def manifest(self, data: bytes) -> bytes:
        """Signature of a manifest's exact bytes."""

    def order(self, body: bytes) -> bytes:
        """Signature of the exact bytes of an order's body."""

    def masking(self, kind: str, body: bytes) -> bytes:
        """Signature of the exact bytes of what is said of masks."""

    @property
    def statements(self) -> Sequence[KeyStatement]:
        """Every change there was of the key that signs."""


OPEN_BLOBS = 16


class Publisher:
    """Sends to devices over ``transport``, orders signed where there is a key.

    ``bulk`` gives the address that a device may have blobs from, for an order that ends in so many seconds,
    ``upload_to`` the one beside it where updates may be put; ``account`` counts bytes by device, and ``budgets`` holds
    them against what it was ordered.
    """

    def __init__(
        self,
        federation: str,
        blobs: Served,
        transport: Transport,
        *,
        signer: Signer | None = None,
        bulk: Callable[[str, float], str] | None = None,
        upload_to: Callable[[str], str] | None = None,
        account: ByteAccount | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self._federation = federation
        self._blobs = blobs
        self._transport = transport
        self._signer = signer
        self._bulk = bulk
        self._upload_to = upload_to
        self._manifest_signatures: dict[str, bytes] = {}
        self._open: OrderedDict[str, BufferedReader] = OrderedDict()
        self._lock = threading.Lock()
        self.account = account or ByteAccount()
        self.budgets = budgets or Budgets()
        self._artifact_bytes: dict[str, int] = {}

    @property
    def is_signed(self) -> bool:
        """Whether devices can tell what comes from here."""
        return self._signer is not None

    def order(self, order: WorkOrder, *, deadline_s: float) -> None:
        """Send ``order`` with the seconds left now."""
        self.budgets.ordered(order.device, order.assignment_id, self._bytes_of(order))
        sent = msgspec.structs.replace(order, deadline_s=deadline_s)
        if self._bulk is not None:
            sent = msgspec.structs.replace(sent, bulk=self._bulk(order.device, deadline_s))
        if self._upload_to is not None:
            sent = msgspec.structs.replace(sent, upload_to=self._upload_to(sent.bulk))
        if self._signer is None:
            self._say(order.device, "order", sent, qos=1)
            return
        digest = order.artifact.digest
        if not sent.artifact_signature:
            if digest not in self._manifest_signatures:
                self._manifest_signatures[digest] = self._signer.manifest(self._blobs.path(digest).read_bytes())
            sent = msgspec.structs.replace(sent, artifact_signature=self._manifest_signatures[digest])
        payload = seal("order", sent, sign=self._signer.order)
        self._publish(order.device, "order", payload, qos=1)

    def _bytes_of(self, order: WorkOrder) -> int:
        """Of everything that the order names, the artifact's files too."""
        digest = order.artifact.digest
        if digest not in self._artifact_bytes:
            try:
                manifest = ArtifactManifest.from_bytes(self._blobs.path(digest).read_bytes())
                self._artifact_bytes[digest] = order.artifact.size + sum(file.size for file in manifest.files)
            except (ApportionError, OSError):
                return order.artifact.size + order.weights.size  # the device says that it is damaged
        others = order.weights.size + (order.constants.size if order.constants is not None else 0)
        return self._artifact_bytes[digest] + others

    def call(self, device: str = "") -> None:
        """Ask ``device``, or everyone, to say hello: who has just started knows nobody."""
        topic = topics.down(self._federation, device, "hello") if device else topics.everyone(self._federation, "hello")
        self._transport.publish(topic, seal("hello", {}), qos=1)

    def tell_signers(self, device: str) -> None:
        """Tell ``device`` which keys sign, where that was ever changed; before any order that it checks with them."""
        if self._signer is not None and self._signer.statements:
            self._say(device, "signers", Signers(tuple(self._signer.statements)), qos=1)

    def ack(self, device: str, ack: Ack) -> None:
        """Tell ``device`` to forget an assignment."""
        self._say(device, "ack", ack, qos=1)

    def error(self, device: str, error: Error) -> bool:
        """Tell ``device`` that something it sent could not be used; False when it has heard that too often lately."""
        is_told = self.budgets.may_hear_of_error(device)
        if is_told:
            self._say(device, "error", error, qos=1)
        return is_told

    def grant(self, device: str, grant: Grant) -> None:
        """Tell ``device`` how far its upload has come."""
        self._say(device, "grant", grant, qos=0)

    def say(self, device: str, kind: str, body: msgspec.Struct) -> None:
        """Tell ``device`` something of another kind, with QoS 1."""
        self._say(device, kind, body, qos=1)

    def say_signed(self, device: str, kind: str, body: msgspec.Struct) -> None:
        """Tell ``device`` something of its masks, signed where there is a key."""
        signer = self._signer
        sign = None if signer is None else lambda data: signer.masking(kind, data)
        self._publish(device, kind, seal(kind, body, sign=sign), qos=1)

    def block(self, device: str, get: Get) -> None:
        """Answer a ``get`` with a block, or with an error when the blob is not there."""
        with self._lock:
            file = self._opened(get.digest)
            if file is None or get.encoding != "raw":
                what = f"blob {get.digest[:12]}, encoding {get.encoding!r}"
                self.error(
                    device, Error("unknown-blob", f"{what} is not served; say hello for a new order", get.digest)
                )
                return
            total = file.seek(0, 2)
            file.seek(min(max(get.offset, 0), total))
            data = file.read(min(max(get.length, 0), MAX_BLOCK_BYTES))
        self.account.add(device, "down", "mqtt", payload=len(data))
        self._say(device, "block", Block(get.digest, get.offset, total, data), qos=0)

    def _opened(self, digest: str) -> BufferedReader | None:
        if digest in self._open:
            self._open.move_to_end(digest)
            return self._open[digest]
        if digest not in self._blobs:
            return None
        self._open[digest] = self._blobs.open(digest)
        if len(self._open) > OPEN_BLOBS:
            self._open.popitem(last=False)[1].close()
        return self._open[digest]

    def forget(self, digest: str) -> None:
        """Close the file of a blob that is about to be replaced."""
        with self._lock:
            if digest in self._open:
                self._open.pop(digest).close()

    def close(self) -> None:
        """Close the files kept open."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()

    def _say(self, device: str, kind: str, body: msgspec.Struct, *, qos: Qos) -> None:
        self._publish(device, kind, seal(kind, body), qos=qos)

    def _publish(self, device: str, kind: str, payload: bytes, *, qos: Qos) -> None:
        topic = topics.down(self._federation, device, kind)
        self.budgets.answered(device, len(payload))
        self.account.add(device, "down", "mqtt", wire=publication_bytes(topic, len(payload), qos=qos))
        self._transport.publish(topic, payload, qos=qos)
