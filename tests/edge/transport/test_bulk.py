"""An agent whose order names an address for blobs has them from there, or over MQTT when nothing is served."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import msgspec
import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import server_files
from coordinator.identity.authority import Authority
from coordinator.web.device_services import BlobService
from edge.supervisor.assignment import order_identity
from tests.contracts.samples import ORDER
from tests.edge.agent_bench import Bench

NOWHERE = "https://localhost:1/v1/ticket/"


@pytest.mark.parametrize("where", ["served", "nowhere", "another authority", "no authority"])
def test_agent_has_its_blobs_over_https_or_over_mqtt(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("edge.transport.range_requests.IDLE_S", 0.2)
    for name in ("identity", "other"):
        Authority.create(tmp_path / name).close()
    ca = tmp_path / ("other" if where == "another authority" else "identity") / "ca.pem"
    store = BlobStore(tmp_path / "blobs")
    files = server_files(tmp_path / "identity", "localhost")
    with BlobService(store, "https://localhost:0", *files) as service:
        checks = None if where == "no authority" else lambda: ssl.create_default_context(cafile=str(ca))
        bench.agent(bulk_tls=checks)
        job = bench.publish()
        for blob in job.blobs.values():
            store.put(blob)
        url = NOWHERE if where == "nowhere" else service.url_for("dev-1", 60)
        bench.coordinator.order(msgspec.structs.replace(job.order, bulk=url))
        report = bench.coordinator.wait_for("report")
        is_served = where == "served"
        assert report.bytes_down == sum(len(blob) for blob in job.blobs.values())
        assert ("get" in bench.coordinator.kinds()) == (not is_served)
        sent = {row.device: row.payload_bytes for row in service.account.take()}
        assert sent == ({"dev-1": report.bytes_down} if is_served else {})
        time.sleep(0.4)  # the thread's connection is closed when it idles


@pytest.mark.slow
def test_order_with_another_ticket_is_the_same_order(bench: Bench) -> None:
    bench.agent()
    bench.coordinator.is_serving = False
    job = bench.publish()
    bench.coordinator.order(msgspec.structs.replace(job.order, bulk=NOWHERE))
    bench.coordinator.wait_for("get")
    bench.coordinator.order(msgspec.structs.replace(job.order, bulk="https://localhost:1/v1/another/"))
    bench.coordinator.wait_for("accept", count=2)
    bench.coordinator.is_serving = True
    bench.coordinator.wait_for("report")
    assert "refuse" not in bench.coordinator.kinds()


def test_identity_of_an_order_leaves_its_ticket_out() -> None:
    assert order_identity(ORDER) == order_identity(msgspec.structs.replace(ORDER, bulk="", deadline_s=1.0))
    assert order_identity(ORDER) != order_identity(msgspec.structs.replace(ORDER, batch=17))
