"""Mosquitto with an identity: who is let in, on which topics, and what a revocation does to an open connection."""

from __future__ import annotations

import queue
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.access import access_rules
from coordinator.brokers.broker_files import (
    ClientFiles,
    coordinator_files,
    local_device_files,
    loopback_broker,
    write_broker_folder,
)
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess, open_broker
from coordinator.config.run_config import BrokerConfig
from coordinator.identity.authority import Authority
from coordinator.identity.folder import key_beside
from coordinator.identity.issuers import OfflineRoot
from coordinator.local_devices.processes import connection_address
from edge.contracts import topics
from edge.contracts.errors import AccessDenied, IdentityRefused
from edge.identity.device_identity import make_request
from edge.supervisor.outbox import farewell_message
from edge.transport.base import Connected, Event, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport

pytestmark = [
    pytest.mark.broker,
    # A handshake that is refused leaves paho's socket to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
NEEDS_MOSQUITTO = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here")


class Client:
    """A connection with what it received."""

    def __init__(self, url: str, files: ClientFiles | None, ca: Path, client_id: str, filters: tuple[str, ...]) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        certificate = None if files is None else str(files.certificate)
        key = None if files is None else str(files.key)
        self.transport = MqttTransport(
            parse_broker(url, ca=str(ca), certificate=certificate, key=key),
            client_id=client_id,
            subscriptions=filters,
            connect_timeout_s=5,
        )
        self.transport.start(self.events.put)
        assert self.events.get(timeout=5) == Connected()

    def heard(self, timeout_s: float) -> list[str]:
        """Topics of what came until nothing more did for ``timeout_s``."""
        found = []
        while True:
            try:
                event = self.events.get(timeout=timeout_s)
            except queue.Empty:
                return found
            if isinstance(event, Received):
                found.append(event.topic)

    def wait_for(self, topic: str) -> None:
        """Until a message on ``topic``; one on another topic before it is a failure."""
        deadline = time.monotonic() + 10
        while True:
            event = self.events.get(timeout=max(0.01, deadline - time.monotonic()))
            if isinstance(event, Received):
                assert event.topic == topic
                return


class Site:
    """An authority, a running broker, and who connects to it."""

    def __init__(self, folder: Path, offline_root: OfflineRoot | None = None) -> None:
        self.identity = folder / "identity"
        Authority.create(self.identity, offline_root=offline_root).close()
        coordinator_files(self.identity, "fed", issue=True)
        self.broker = BrokerProcess("mosquitto", folder / "broker", identity=self.identity)
        self.broker.start()
        self.ca = self.identity / "ca.pem"
        self._clients: list[Client] = []

    def device(self, name: str) -> ClientFiles:
        return local_device_files(self.identity, name)

    def connect(self, files: ClientFiles | None, client_id: str = "x", *filters: str) -> Client:
        client = Client(self.broker.address.url, files, self.ca, client_id, filters or ("none",))
        self._clients.append(client)
        return client

    def coordinator(self, federation: str = "fed", *filters: str) -> Client:
        files = coordinator_files(self.identity, federation, issue=True)
        return self.connect(files, "co", *(filters or (topics.coordinator_filter(federation),)))

    def agent(self, name: str) -> Client:
        return self.connect(self.device(name), f"fed/{name}", *topics.device_filters("fed", name))

    def close(self) -> None:
        for client in self._clients:
            client.transport.stop()
        self.broker.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def test_device_and_coordinator_hear_each_other(site: Site) -> None:
    coordinator, device = site.coordinator(), site.agent("pi-1")
    device.transport.publish(topics.up("fed", "pi-1", "hello"), b"up")
    coordinator.wait_for(topics.up("fed", "pi-1", "hello"))
    coordinator.transport.publish(topics.down("fed", "pi-1", "order"), b"down")
    device.wait_for(topics.down("fed", "pi-1", "order"))
    coordinator.transport.publish(topics.everyone("fed", "hello"), b"all")
    device.wait_for(topics.everyone("fed", "hello"))
    coordinator.transport.publish(topics.down("fed", "pi-1", "block"), b"x" * 262_144, qos=0)
    device.wait_for(topics.down("fed", "pi-1", "block"))


@pytest.mark.slow
def test_device_speaks_on_no_topic_but_its_own(site: Site) -> None:
    everything = ("apportion/#",)
    coordinator, victim = site.coordinator(), site.agent("pi-1")
    thief = site.connect(site.device("pi-2"), "fed/pi-2", *everything)
    for topic in (
        topics.up("fed", "pi-1", "report"),
        topics.down("fed", "pi-1", "order"),
        topics.down("fed", "pi-2", "order"),
        topics.everyone("fed", "hello"),
        topics.up("fed", "@fed", "hello"),
        "elsewhere",
        topics.up("fed", "pi-2", "hello"),
    ):
        thief.transport.publish(topic, b"forged")
    coordinator.wait_for(topics.up("fed", "pi-2", "hello"))  # the last one, and its own
    assert victim.heard(0.5) == []
    assert coordinator.heard(0.2) == []


@pytest.mark.slow
def test_device_hears_nothing_of_others(site: Site) -> None:
    thief = site.connect(site.device("pi-2"), "fed/pi-2", "apportion/v1/fed/#", "apportion/v1/fed/dn/pi-1/#", "$SYS/#")
    coordinator, victim = site.coordinator(), site.agent("pi-1")
    coordinator.transport.publish(topics.down("fed", "pi-1", "order"), b"secret")
    victim.transport.publish(topics.up("fed", "pi-1", "report"), b"secret")
    coordinator.transport.publish(topics.down("fed", "pi-2", "order"), b"own")
    assert thief.heard(0.5) == [topics.down("fed", "pi-2", "order")]
    assert victim.heard(0.2) == [topics.down("fed", "pi-1", "order")]


@pytest.mark.slow
def test_coordinator_has_the_topics_of_its_federation_only(site: Site) -> None:
    coordinator_files(site.identity, "other", issue=True)
    site.broker.reload()
    time.sleep(0.3)
    ours, theirs = site.coordinator("fed"), site.coordinator("other", "apportion/v1/+/up/#")
    device = site.agent("pi-1")
    theirs.transport.publish(topics.down("fed", "pi-1", "order"), b"not theirs")
    device.transport.publish(topics.up("fed", "pi-1", "hello"), b"fed")
    ours.wait_for(topics.up("fed", "pi-1", "hello"))
    device.transport.publish(topics.up("other", "pi-1", "hello"), b"other")
    theirs.wait_for(topics.up("other", "pi-1", "hello"))
    assert device.heard(0.5) == []
    assert theirs.heard(0.2) == []


@pytest.mark.slow
def test_no_certificate_is_refused(site: Site) -> None:
    with pytest.raises(AccessDenied, match="--cert and --key"):
        site.connect(None)


@pytest.mark.slow
def test_certificate_of_a_foreign_authority_is_refused(site: Site, tmp_path: Path) -> None:
    Authority.create(tmp_path / "foreign").close()
    foreign = local_device_files(tmp_path / "foreign", "pi-1")
    with pytest.raises(AccessDenied, match="--cert and --key"):
        site.connect(foreign)


@pytest.mark.slow
def test_certificate_of_a_server_is_no_clients(site: Site) -> None:
    with Authority(site.identity) as authority:
        server = authority.issue_server(["gateway.local"])
    files = ClientFiles(site.ca, server.path, key_beside(server.path), site.ca)
    with pytest.raises(AccessDenied, match="--cert and --key"):
        site.connect(files)


def test_device_cannot_pass_for_the_broker(site: Site) -> None:
    files = site.device("pi-1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    client = ssl.create_default_context(cafile=str(site.ca))
    client.check_hostname = False  # the name is not what is tried here
    inward, outward, answer, question = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    fake = context.wrap_bio(inward, outward, server_side=True)
    victim = client.wrap_bio(answer, question)
    with pytest.raises(ssl.SSLWantReadError):
        victim.do_handshake()
    inward.write(question.read())
    with pytest.raises(ssl.SSLWantReadError):
        fake.do_handshake()
    answer.write(outward.read())
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unsuitable certificate purpose|unsupported certificate"):
        victim.do_handshake()


@pytest.mark.slow
def test_revoked_device_loses_its_topics_at_once_and_its_next_connection(site: Site) -> None:
    files, coordinator, device, other = site.device("pi-1"), site.coordinator(), site.agent("pi-1"), site.agent("pi-2")
    device.transport.publish(topics.up("fed", "pi-1", "hello"), b"before")
    coordinator.wait_for(topics.up("fed", "pi-1", "hello"))
    with Authority(site.identity) as authority:
        authority.revoke("pi-1")
    site.broker.reload()
    time.sleep(0.5)
    device.transport.publish(topics.up("fed", "pi-1", "report"), b"after")
    coordinator.transport.publish(topics.down("fed", "pi-1", "order"), b"after")
    coordinator.transport.publish(topics.everyone("fed", "hello"), b"after")
    other.wait_for(topics.everyone("fed", "hello"))
    assert device.heard(0.3) == []
    assert coordinator.heard(0.2) == []
    device.transport.stop()
    with pytest.raises(AccessDenied, match="--cert and --key"):
        site.connect(files)
    site.agent("pi-3")  # others still come in


def test_client_id_of_another_device_ends_no_connection(site: Site) -> None:
    victim, coordinator = site.agent("pi-1"), site.coordinator()
    site.connect(site.device("pi-2"), "fed/pi-1", "none")
    coordinator.transport.publish(topics.down("fed", "pi-1", "order"), b"still there")
    assert victim.heard(0.5) == [topics.down("fed", "pi-1", "order")]


@pytest.mark.slow
def test_forged_will_is_not_delivered(site: Site) -> None:
    coordinator = site.coordinator()
    files = site.device("pi-2")
    thief = MqttTransport(
        parse_broker(site.broker.address.url, ca=str(site.ca), certificate=str(files.certificate), key=str(files.key)),
        client_id="fed/pi-2",
        subscriptions=("none",),
        will=farewell_message("fed", "pi-1", "connection lost"),
    )
    try:
        thief.start(lambda event: None)
        thief._client.socket().close()  # vanish without a goodbye
    except AccessDenied:
        pass  # brokers may refuse such a will when they see it
    finally:
        assert coordinator.heard(1.0) == []
        thief.stop()


@NEEDS_MOSQUITTO
def test_run_file_with_an_identity_opens_a_broker_for_its_coordinator(tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    Authority.create(identity).close()
    config = BrokerConfig(url="mosquitto", identity=str(identity))
    with open_broker(config, tmp_path / "broker", federation="fed") as address:
        assert (address.kind, address.user, address.identity) == ("mosquitto", "", identity)
        assert not (tmp_path / "broker" / "ca.pem").exists()
        transport = MqttTransport(
            connection_address(address), client_id="co", subscriptions=(topics.coordinator_filter("fed"),)
        )
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        transport.start(events.put)
        assert events.get(timeout=5) == Connected()
        transport.stop()


def test_outside_broker_needs_a_certificate_it_knows(tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    Authority.create(identity).close()
    config = BrokerConfig(url="mqtts://broker.local:8883", identity=str(identity))
    with pytest.raises(IdentityRefused, match="no valid certificate of the coordinator of 'fed'") as error:
        with open_broker(config, tmp_path / "broker", federation="fed"):
            pass
    assert "apportion ca issue-coordinator fed" in error.value.hint
    coordinator_files(identity, "fed", issue=True)
    with open_broker(config, tmp_path / "broker", federation="fed") as address:
        assert (address.kind, address.certificate_file) == ("external", identity / "coordinator" / "fed.pem")


@NEEDS_MOSQUITTO
def test_broker_folder_is_all_that_a_mosquitto_needs(tmp_path: Path) -> None:
    identity, out = tmp_path / "identity", tmp_path / "out"
    with Authority.create(identity) as authority:
        with pytest.raises(IdentityRefused, match="the identity has 0 servers"):
            write_broker_folder(identity, out)
        authority.issue_server(["localhost", "127.0.0.1"])
        authority.issue_coordinator("fed")
    with BrokerProcess("mosquitto", tmp_path / "port") as other:
        port = int(other.address.url.rsplit(":", 1)[1])  # one that is free a moment later
    config = write_broker_folder(identity, out, port=port, bind="127.0.0.1")
    assert (out / "server.key").stat().st_mode & 0o777 == 0o600
    assert (out / "access").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in out.iterdir()) == [
        "access", "ca.pem", "crl.pem", "mosquitto.conf", "server.key", "server.pem", "service-limits",
    ]  # fmt: skip
    program = find_mosquitto()
    assert program is not None
    # The system's package changes to a user of its own; here it may not, or could not read the folder.
    (tmp_path / "own.conf").write_text(f"user root\n{config.read_text()}")
    with subprocess.Popen([program, "-c", str(tmp_path / "own.conf")], stderr=subprocess.DEVNULL) as process:
        try:
            files = coordinator_files(identity, "fed", issue=False)
            filters = (topics.coordinator_filter("fed"),)
            client = Client(f"mqtts://localhost:{port}", files, files.ca, "co", filters)
            client.transport.stop()
        finally:
            process.terminate()
    assert "/etc/mosquitto/apportion/access" in write_broker_folder(
        identity, out, at=Path("/etc/mosquitto/apportion")
    ).read_text(encoding="utf-8")


def test_list_that_is_about_to_end_is_renewed_for_the_broker(tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    with Authority.create(identity) as authority:
        authority.write_crl(days=1)
        before = authority.records.revocation_list()[0]
        loopback_broker(identity, tmp_path)
        assert authority.records.revocation_list()[0] == before + 1
        loopback_broker(identity, tmp_path)
        assert authority.records.revocation_list()[0] == before + 1


def test_local_device_cannot_take_a_name_that_is_out_there(tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    with Authority.create(identity) as authority:
        authority.sign_device(make_request(tmp_path / "pi", "pi-1").request.read_bytes(), "pi-1")
    with pytest.raises(IdentityRefused, match="device 'pi-1' has a certificate"):
        local_device_files(identity, "pi-1")
    first = local_device_files(identity, "device-00")
    assert local_device_files(identity, "device-00") == first


def test_rules_name_standing_coordinators_and_deny_who_is_out(tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        for name in ("pi-1", "pi-2"):
            authority.sign_device(make_request(tmp_path / name, name).request.read_bytes(), name)
        authority.issue_coordinator("fed")
        authority.issue_coordinator("gone")
        authority.issue_server(["localhost"])
        authority.revoke("pi-2")
        authority.revoke("@gone")
        rules = access_rules(authority.records.certificates(), authority.now()).decode()
        later = access_rules(authority.records.certificates(), authority.now() + 366 * 86_400).decode()
    assert rules.split("\n\n")[0].splitlines()[1:] == []
    assert rules.split("\n\n")[1:] == [
        "user @fed\ntopic read apportion/v1/fed/up/#\ntopic write apportion/v1/fed/dn/#\n"
        "topic write apportion/v1/fed/all/#",
        "user @fed@fleet\ntopic read apportion/v1/fed/up/#\ntopic write apportion/v1/fed/dn/#\n"
        "topic write apportion/v1/fed/all/#",
        "user @gone\ntopic deny #",
        "user pi-2\ntopic deny #",
        "pattern write apportion/v1/+/up/%u/#\npattern read apportion/v1/+/dn/%u/#\n"
        "pattern read apportion/v1/+/all/#\n",
    ]
    assert "user pi-1\ntopic deny #" in later
