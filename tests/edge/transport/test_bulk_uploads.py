"""An agent whose order names an address for its update puts it there, or sends it over MQTT when that does not work."""

from __future__ import annotations

import queue
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import server_files
from coordinator.identity.authority import Authority
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.messaging.cohort import Cohort
from coordinator.messaging.inbox import Inbox
from coordinator.messaging.message_loop import MessageLoop
from coordinator.web.device_services import BlobService
from edge.agent import Agent
from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.serving.publisher import Publisher
from edge.supervisor.assignment import order_identity
from edge.supervisor.outbox import farewell_message
from edge.supervisor.settings import AgentSettings
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.base import Event
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from tests.contracts.samples import ORDER
from tests.edge.tiny_artifact import tiny_job, write_data

NOWHERE = "https://localhost:1/v1/ticket/upload/"


class Coordinator:
    """The coordinator's handler with its service for blobs, one open order, and a round that stands still."""

    def __init__(self, folder: Path, ledger: Ledger, broker: InMemoryBroker) -> None:
        Authority.create(folder / "identity").close()
        blobs = BlobStore(folder / "blobs")
        files = server_files(folder / "identity", "localhost")
        self.service = BlobService(blobs, "https://localhost:0", *files)
        self.upload_to = self.service.upload_to
        transport = InMemoryTransport(broker, subscriptions=[topics.coordinator_filter("fed")])
        publisher = Publisher(
            "fed",
            blobs,
            transport,
            bulk=self.service.url_for,
            upload_to=lambda bulk: self.upload_to(bulk),
            account=self.service.account,
        )
        self._publisher = publisher
        self.said: list[str] = []
        self._inbox = Inbox(
            "fed",
            ledger=ledger,
            blobs=blobs,
            cohort=Cohort(),
            publisher=publisher,
            remaining_s=lambda: 60.0,
            say=self.said.append,
        )
        self.service.take_updates(self._inbox.uploads)
        self._ledger = ledger
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._handler = MessageLoop(self._inbox, self._events)
        self._transport = transport
        job = tiny_job()
        self.id = job.order.assignment_id
        for blob in job.blobs.values():
            ledger.blobs.add(blobs.put(blob), len(blob))
        entry = Assignment(
            assignment_id=self.id,
            round=0,
            attempt=0,
            device="dev-1",
            level="full",
            cut={},
            artifact_digest=job.order.artifact.digest,
            weights_digest=job.order.weights.digest,
            order=encode_msgpack(job.order),
        )
        ledger.rounds.plan(0, 0, deadline_s=60, assignments=[entry])
        ledger.rounds.move(0, 0, "published")

    def __enter__(self) -> Coordinator:
        self.service.__enter__()
        self._handler.__enter__()
        self._transport.start(self._events.put)
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.stop()
        self._handler.__exit__(None, None, None)
        self.service.__exit__(None, None, None)
        self._publisher.close()

    def wait(self) -> dict[str, int]:
        """Payload bytes that came up, by scheme, once the update is reported."""
        until = time.monotonic() + 60
        while (entry := self._ledger.assignments.find(self.id)) is None or entry.state != "reported":
            assert time.monotonic() < until, (entry, self.said)
            self._inbox.wait(0.2)
        rows = self.service.account.take()
        return {row.scheme: row.payload_bytes for row in rows if row.direction == "up" and row.payload_bytes}


@pytest.fixture
def broker() -> InMemoryBroker:
    return InMemoryBroker()


@pytest.fixture
def coordinator(tmp_path: Path, broker: InMemoryBroker) -> Iterator[Coordinator]:
    with (
        Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger,
        Coordinator(tmp_path, ledger, broker) as coordinator,
    ):
        yield coordinator


def run_agent(folder: Path, broker: InMemoryBroker, ca: Path | None) -> threading.Thread:
    write_data(folder / "data")
    settings = AgentSettings(
        federation="fed",
        device="dev-1",
        data=str(folder / "data"),
        python=sys.executable,
        heartbeat_s=0.2,
        once=True,
        bulk_tls=None if ca is None else lambda: ssl.create_default_context(cafile=str(ca)),
    )
    transport = InMemoryTransport(
        broker,
        subscriptions=topics.device_filters("fed", "dev-1"),
        will=farewell_message("fed", "dev-1", "connection lost"),
    )
    thread = threading.Thread(target=Agent(settings, transport, ArtifactStore(folder / "store")).run)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("where", ["served", "nowhere", "no uploads", "another authority", "no authority"])
def test_agent_puts_its_update_over_https_or_sends_it_over_mqtt(
    tmp_path: Path, broker: InMemoryBroker, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("edge.transport.put_requests.PIECE_BYTES", 100)
    monkeypatch.setattr("edge.transport.put_requests.PAUSE_S", 0.05)
    monkeypatch.setattr("edge.transport.range_requests.IDLE_S", 0.2)
    ca: Path | None = tmp_path / "identity" / "ca.pem"
    if where == "nowhere":
        coordinator.upload_to = lambda bulk: NOWHERE
    elif where == "no uploads":
        coordinator.service.take_updates(None)
    elif where == "another authority":
        Authority.create(tmp_path / "other").close()
        ca = tmp_path / "other" / "ca.pem"
    elif where == "no authority":
        ca = None
    thread = run_agent(tmp_path, broker, ca)
    brought = coordinator.wait()
    thread.join(20)
    assert not thread.is_alive()
    (scheme,) = brought
    assert scheme == ("https" if where == "served" else "mqtt")
    assert brought[scheme] > 100
    time.sleep(0.4)  # the thread that fetched blobs closes its connection when it idles


def test_identity_of_an_order_leaves_its_place_for_the_update_out() -> None:
    assert order_identity(ORDER) == order_identity(msgspec.structs.replace(ORDER, upload_to=""))
