"""What the coordinator sends: blocks of blobs within their bounds, orders with the time left, calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.blobs.blob_store import BlobStore
from coordinator.identity.signing import SigningKey
from edge.contracts import topics
from edge.contracts.envelope import unseal
from edge.contracts.errors import MessageRejected
from edge.contracts.identity import KeyStatement, Signers
from edge.contracts.messages import Block, Error, Get
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.signing import signers_text
from edge.identity.trust import Trust
from edge.serving.publisher import MAX_BLOCK_BYTES, OPEN_BLOBS, Publisher
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from tests.contracts.samples import ORDER

BLOB = bytes(range(256)) * 1200  # 307,200 bytes, more than one block


class Sent:
    """A publisher, and what arrives at one device."""

    def __init__(self, folder: Path) -> None:
        self.blobs = BlobStore(folder)
        broker = InMemoryBroker()
        self.received: list[tuple[str, Any]] = []
        device = InMemoryTransport(broker, subscriptions=topics.device_filters("fed", "pi-1"))
        device.start(self._take)
        ours = InMemoryTransport(broker, subscriptions=())
        ours.start(lambda event: None)
        self.publisher = Publisher("fed", self.blobs, ours)
        self.digest = self.blobs.put(BLOB)

    def _take(self, event: Any) -> None:
        if hasattr(event, "payload"):
            self.received.append((topics.kind_of(event.topic), unseal(event.payload)))

    def block(self, offset: int, length: int) -> Block:
        self.received.clear()
        self.publisher.block("pi-1", Get(self.digest, "raw", offset, length))
        ((kind, envelope),) = self.received
        assert kind == "block"
        return Block(**{f: getattr(envelope.read(Block), f) for f in Block.__struct_fields__})


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Sent]:
    sent = Sent(tmp_path)
    yield sent
    sent.publisher.close()


@pytest.mark.parametrize(
    ("offset", "length", "begin", "end"),
    [
        (0, 1000, 0, 1000),
        (100, 1000, 100, 1100),
        (0, 10**9, 0, MAX_BLOCK_BYTES),
        (300_000, 1000_000, 300_000, len(BLOB)),
        (len(BLOB) - 1, 5, len(BLOB) - 1, len(BLOB)),
        (len(BLOB), 5, len(BLOB), len(BLOB)),
        (10**15, 5, len(BLOB), len(BLOB)),
        (0, 0, 0, 0),
        (0, -1, 0, 0),
        (-5, 10, 0, 10),
    ],
)
def test_block_is_the_part_that_was_asked_for(sent: Sent, offset: int, length: int, begin: int, end: int) -> None:
    block = sent.block(offset, length)
    assert block.data == BLOB[begin:end]
    assert (block.digest, block.offset, block.total) == (sent.digest, offset, len(BLOB))


def test_blocks_put_together_are_the_blob(sent: Sent) -> None:
    data = b""
    while len(data) < len(BLOB):
        data += sent.block(len(data), 65_536).data
    assert data == BLOB
    (counted,) = sent.publisher.account.take()
    assert (counted.device, counted.direction, counted.payload_bytes) == ("pi-1", "down", len(BLOB))
    assert 0 < counted.wire_bytes - len(BLOB) < 0.03 * len(BLOB)


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
def test_block_of_an_unknown_blob_or_encoding_is_an_error(sent: Sent, encoding: str) -> None:
    digest = "a" * 64 if encoding == "raw" else sent.digest
    sent.publisher.block("pi-1", Get(digest, encoding, 0, 10))
    ((kind, envelope),) = sent.received
    error = envelope.read(Error)
    assert (kind, error.code, error.about) == ("error", "unknown-blob", digest)
    assert digest[:12] in error.message


def test_block_of_what_is_no_digest_reads_no_file(sent: Sent) -> None:
    with pytest.raises(MessageRejected):
        sent.publisher.block("pi-1", Get("../../../etc/hostname", "raw", 0, 10))
    assert sent.received == []


def test_block_keeps_a_bounded_number_of_files_open(sent: Sent) -> None:
    for index in range(OPEN_BLOBS + 5):
        digest = sent.blobs.put(f"blob {index}".encode())
        sent.publisher.block("pi-1", Get(digest, "raw", 0, 100))
    assert len(sent.publisher._open) == OPEN_BLOBS
    assert sent.block(0, 4).data == BLOB[:4]  # closed in between, opened again


def test_forget_lets_a_replaced_blob_be_served_anew(sent: Sent) -> None:
    sent.block(0, 4)
    sent.publisher.forget(sent.digest)
    sent.blobs.delete(sent.digest)
    sent.received.clear()
    sent.publisher.block("pi-1", Get(sent.digest, "raw", 0, 4))
    assert sent.received[0][1].read(Error).code == "unknown-blob"


def test_order_carries_the_time_that_is_left(sent: Sent) -> None:
    import msgspec

    order = msgspec.structs.replace(ORDER, device="pi-1", deadline_s=60.0)
    sent.publisher.order(order, deadline_s=7.5)
    ((kind, envelope),) = sent.received
    assert kind == "order"
    assert envelope.read(WorkOrder) == msgspec.structs.replace(order, deadline_s=7.5)


def test_order_and_its_manifest_are_signed_where_there_is_a_key(sent: Sent, tmp_path: Path) -> None:
    import msgspec

    key = SigningKey(Ed25519PrivateKey.generate())
    publisher = Publisher("fed", sent.blobs, sent.publisher._transport, signer=key)
    order = msgspec.structs.replace(
        ORDER, device="pi-1", artifact=BlobRef(sent.digest, len(BLOB)), artifact_signature=b""
    )
    (tmp_path / "signing.pub").write_bytes(key.public_pem)
    trust = Trust.load(tmp_path / "signing.pub")
    publisher.order(order, deadline_s=60.0)
    publisher.order(order, deadline_s=7.5)
    for (_, envelope), deadline_s in zip(sent.received, (60.0, 7.5), strict=True):
        arrived = envelope.read(WorkOrder)
        trust.check_order(arrived, bytes(envelope.body), envelope.signature)
        trust.check_manifest(BLOB, arrived.artifact_signature)
        assert msgspec.structs.replace(arrived, artifact_signature=b"") == msgspec.structs.replace(
            order, deadline_s=deadline_s
        )
    signatures = {envelope.read(WorkOrder).artifact_signature for _, envelope in sent.received}
    assert len(signatures) == 1  # a repeated order is the same order
    sent.publisher.order(order, deadline_s=60.0)
    assert sent.received[-1][1].signature == b""


def test_changes_of_the_signing_key_are_told_where_there_were_any(sent: Sent) -> None:
    key = SigningKey.generate()
    statement = KeyStatement(1, (key.public_raw,), key.sign(signers_text(1, (key.public_raw,))))
    transport = sent.publisher._transport
    Publisher("fed", sent.blobs, transport, signer=key).tell_signers("pi-1")
    sent.publisher.tell_signers("pi-1")
    assert sent.received == []
    Publisher("fed", sent.blobs, transport, signer=SigningKey(key._key, [statement])).tell_signers("pi-1")
    ((kind, envelope),) = sent.received
    assert (kind, envelope.read(Signers).statements) == ("signers", (statement,))


def test_call_reaches_one_device_or_all(sent: Sent) -> None:
    sent.publisher.call("pi-2")
    assert sent.received == []
    sent.publisher.call("pi-1")
    sent.publisher.call()
    assert [kind for kind, _ in sent.received] == ["hello", "hello"]


def test_order_names_where_blobs_are_served_for_its_device_and_time(sent: Sent) -> None:
    import msgspec

    ours = sent.publisher._transport
    publisher = Publisher("fed", sent.blobs, ours, bulk=lambda device, valid_s: f"https://x/{device}/{valid_s:g}/")
    publisher.order(msgspec.structs.replace(ORDER, device="pi-1"), deadline_s=7.5)
    assert sent.received[0][1].read(WorkOrder).bulk == "https://x/pi-1/7.5/"
