"""A broker that lets in certificates only: the device's name is its certificate's, a foreign authority is refused."""

from __future__ import annotations

import queue
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from coordinator.brokers.mosquitto import find_mosquitto
from edge.contracts.errors import AccessDenied
from edge.transport.base import Connected, Event, Received
from edge.transport.broker_address import BrokerAddress, parse_broker
from edge.transport.mqtt import MqttTransport
from tests.mosquitto import running_mosquitto

pytestmark = pytest.mark.broker

ACCESS = """\
pattern write apportion/v1/+/up/%u/#
pattern read apportion/v1/+/dn/%u/#
"""


def certificate(authority: trustme.CA, folder: Path, name: str) -> tuple[str, str]:
    made = authority.issue_cert(common_name=name)
    made.private_key_pem.write_to_path(folder / f"{name}.key")
    made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return str(folder / f"{name}.pem"), str(folder / f"{name}.key")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = authority.issue_cert("127.0.0.1", common_name="broker")
    server.private_key_pem.write_to_path(tmp_path / "server.key")
    server.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    certificate(authority, tmp_path, "pi-07")
    certificate(trustme.CA(), tmp_path, "stranger")
    (tmp_path / "acl").write_text(ACCESS)
    config = tmp_path / "mosquitto.conf"

    def write(chosen: int) -> Path:
        config.write_text(
            f"listener {chosen} 127.0.0.1\ncafile {tmp_path}/ca.pem\ncertfile {tmp_path}/server.pem\n"
            f"keyfile {tmp_path}/server.key\nrequire_certificate true\nuse_identity_as_username true\n"
            f"allow_anonymous false\nacl_file {tmp_path}/acl\nuser root\n"
        )
        return config

    with running_mosquitto(write) as (_, chosen):
        yield chosen


def address(folder: Path, port: int, name: str) -> BrokerAddress:
    return parse_broker(
        f"mqtts://127.0.0.1:{port}",
        ca=str(folder / "ca.pem"),
        certificate=str(folder / f"{name}.pem"),
        key=str(folder / f"{name}.key"),
    )


def test_mutual_tls_device_hears_its_own_topics(tmp_path: Path, port: int) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    device = MqttTransport(
        address(tmp_path, port, "pi-07"),
        client_id="pi-07",
        subscriptions=["apportion/v1/fed/dn/pi-07/#", "apportion/v1/fed/dn/pi-08/#"],
    )
    try:
        device.start(events.put)
        assert events.get(timeout=5) == Connected()
        device.publish("apportion/v1/fed/up/pi-07/hello", b"mine")
        device.publish("apportion/v1/fed/dn/pi-07/order", b"not mine to send")
        with pytest.raises(queue.Empty):
            assert not isinstance(events.get(timeout=0.5), Received)
    finally:
        device.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["stranger", None])
def test_mutual_tls_foreign_or_no_certificate_is_denied(tmp_path: Path, port: int, name: str | None) -> None:
    wanted = address(tmp_path, port, name or "pi-07")
    if name is None:
        wanted = parse_broker(f"mqtts://127.0.0.1:{port}", ca=str(tmp_path / "ca.pem"))
    transport = MqttTransport(wanted, client_id="x", subscriptions=["a"], connect_timeout_s=3)
    with pytest.raises(AccessDenied, match="--cert and --key"):
        transport.start(lambda event: None)
    shutil.rmtree(tmp_path, ignore_errors=True)
