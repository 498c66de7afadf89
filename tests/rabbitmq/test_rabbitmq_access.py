"""One node of RabbitMQ 4 with generated files: who is let in, on which topics, and what a revocation does at once."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import ClientFiles, coordinator_files, local_device_files
from coordinator.identity.authority import Authority
from coordinator.identity.folder import key_beside
from coordinator.identity.issuers import OfflineRoot
from edge.contracts import topics
from edge.contracts.errors import AccessDenied, BrokerUnreachable
from edge.transport.base import Disconnected
from tests.rabbitmq.client import Client
from tests.rabbitmq.cluster import Cluster

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    # A handshake that is refused leaves paho's socket to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
DEVICES = ("pi-1", "pi-2", "pi-3", "pi-gone")


class Site:
    """An authority, a node, and who connects to it."""

    def __init__(self, root: Path, folder: Path, offline_root: OfflineRoot | None = None) -> None:
        self.identity = folder / "identity"
        with Authority.create(self.identity, offline_root=offline_root) as authority:
            authority.issue_server(["localhost", "127.0.0.1"])
        for federation in ("fed", "other"):
            coordinator_files(self.identity, federation, issue=True)
        for name in DEVICES:
            local_device_files(self.identity, name)
        with Authority(self.identity) as authority:
            authority.revoke("pi-gone")
        self.cluster = Cluster(root, folder, self.identity, 1)
        self.ca = str(self.identity / "ca.pem")
        self.clients: list[Client] = []

    def files(self, name: str) -> ClientFiles:
        if name.startswith("@"):
            return coordinator_files(self.identity, name[1:], issue=False)
        path = self.identity / "devices" / f"{name}.pem"
        key = self.identity / "local" / name / "device.key"
        return ClientFiles(self.identity / "ca.pem", path, key, self.identity / "signing.pub")

    def connect(self, files: ClientFiles | None, name: str, *filters: str, **impostor: str) -> Client:
        client = Client(self.cluster.url, self.ca, files, name, *filters, **impostor)
        self.clients.append(client)
        return client

    def coordinator(self, federation: str = "fed") -> Client:
        return self.connect(self.files(f"@{federation}"), f"@{federation}", topics.coordinator_filter(federation))

    def agent(self, name: str, federation: str = "fed") -> Client:
        return self.connect(self.files(name), name, *topics.device_filters(federation, name))


@pytest.fixture(scope="module")
def node(rabbitmq_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(rabbitmq_root, tmp_path_factory.mktemp("rabbitmq"))
    with site.cluster:
        yield site


@pytest.fixture
def site(node: Site) -> Iterator[Site]:
    yield node
    for client in node.clients:
        client.transport.stop()
    node.clients.clear()


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


@pytest.mark.parametrize(
    "topic",
    [
        topics.up("fed", "pi-1", "report"),
        topics.down("fed", "pi-1", "order"),
        topics.down("fed", "pi-2", "order"),
        topics.everyone("fed", "hello"),
        "apportion/v1/fed/up.pi-1/report",
        topics.up("fed", "@fed", "hello"),
        "apportion/v1/fed/up/pi-2",
        "apportion/v1/fed/up/pi-2/a/b",
        "apportion/v1/a.b/up/pi-1/up/pi-2/hello",
        "x/apportion/v1/fed/up/pi-2/hello",
        "elsewhere",
    ],
)
def test_device_speaks_on_no_topic_but_its_own(site: Site, topic: str) -> None:
    coordinator, victim = site.coordinator(), site.agent("pi-1")
    thief = site.agent("pi-2")
    thief.transport.publish(topics.up("fed", "pi-2", "hello"), b"own")
    coordinator.wait_for(topics.up("fed", "pi-2", "hello"))
    thief.transport.publish(topic, b"forged")
    thief.wait_until(Disconnected)  # RabbitMQ ends the connection of who publishes what is not its own
    assert victim.heard(0.3) == []
    assert coordinator.heard(0.1) == []


@pytest.mark.parametrize(
    "wish",
    [
        "#",
        "apportion/v1/fed/#",
        "apportion/v1/fed/dn/pi-1/#",
        "apportion/v1/fed/dn/+/order",
        "apportion/v1/fed/+/pi-2/hello",
        "apportion/v1/fed/up/pi-2/#",
        "$SYS/#",
    ],
)
def test_device_may_not_listen_to_others(site: Site, wish: str) -> None:
    with pytest.raises((AccessDenied, BrokerUnreachable)):
        site.connect(site.files("pi-2"), "pi-2", wish)


def test_coordinator_has_the_topics_of_its_federation_only(site: Site) -> None:
    device, ours, theirs = site.agent("pi-1"), site.coordinator("fed"), site.coordinator("other")
    theirs.transport.publish(topics.down("fed", "pi-1", "order"), b"not theirs")
    theirs.wait_until(Disconnected)
    device.transport.publish(topics.up("fed", "pi-1", "hello"), b"fed")
    ours.wait_for(topics.up("fed", "pi-1", "hello"))
    assert device.heard(0.3) == []
    with pytest.raises((AccessDenied, BrokerUnreachable)):
        site.connect(site.files("@other"), "@other", topics.coordinator_filter("fed"))


def test_no_certificate_is_refused(site: Site) -> None:
    with pytest.raises(AccessDenied, match="--cert and --key"):
        site.connect(None, "pi-1", "none")


def test_certificate_of_a_foreign_authority_is_refused(site: Site, tmp_path: Path) -> None:
    Authority.create(tmp_path / "foreign").close()
    foreign = local_device_files(tmp_path / "foreign", "pi-1")
    with pytest.raises(AccessDenied, match="--cert and --key"):
        site.connect(foreign, "pi-1", *topics.device_filters("fed", "pi-1"))


def test_certificate_of_a_server_is_no_clients(site: Site) -> None:
    server = site.identity / "server" / "localhost.pem"
    files = ClientFiles(server, server, key_beside(server), server)
    with pytest.raises(AccessDenied):
        site.connect(files, "localhost", "none")


def test_certificate_that_is_on_the_list_is_refused(site: Site) -> None:
    assert "pi-gone" not in site.cluster.command("rabbitmqctl", "list_users")
    with pytest.raises(AccessDenied, match="--cert and --key"):
        site.agent("pi-gone")
    assert "Revoked" in site.cluster.log(site.cluster.nodes[0]).title()


@pytest.mark.parametrize(
    "impostor",
    [
        {"client_id": "CN=pi-1"},
        {"client_id": "fed/pi-2"},
        {"user": "pi-1", "password": ""},
        {"user": "pi-1", "password": "x"},
        {"user": "guest", "password": "guest"},
    ],
)
def test_nobody_is_another_by_client_id_or_user_name(site: Site, impostor: dict[str, str]) -> None:
    victim = site.agent("pi-1")
    with pytest.raises((AccessDenied, BrokerUnreachable)):
        site.connect(site.files("pi-2"), "pi-2", *topics.device_filters("fed", "pi-1"), **impostor)
    assert victim.heard(0.3) == []


def test_user_name_without_a_password_does_not_make_another_of_it(site: Site) -> None:
    coordinator = site.coordinator()
    try:
        thief = site.connect(site.files("pi-2"), "pi-2", *topics.device_filters("fed", "pi-2"), user="pi-1")
    except (AccessDenied, BrokerUnreachable):
        return
    thief.transport.publish(topics.up("fed", "pi-1", "hello"), b"forged")
    thief.wait_until(Disconnected)
    assert coordinator.heard(0.3) == []


def test_nodes_talk_to_each_other_over_tls(site: Site) -> None:
    port = site.cluster.nodes[0].distribution_port
    context = ssl.create_default_context(cafile=site.ca)
    with socket.create_connection(("localhost", port), 5) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            assert connection.version() in ("TLSv1.2", "TLSv1.3")


def test_no_other_door_is_open(site: Site) -> None:
    text = site.cluster.command("rabbitmq-diagnostics", "--quiet", "listeners")
    found = sorted(re.findall(r"interface: (\S+), port: (\d+), protocol: (\S+),", text.lower()))
    node = site.cluster.nodes[0]
    assert found == sorted(
        [("127.0.0.1", str(node.port), "mqtt/ssl"), ("127.0.0.1", str(node.distribution_port), "clustering")]
    )


def test_identity_with_an_offline_root_lets_in_and_shuts_out_the_same(rabbitmq_root: Path, tmp_path: Path) -> None:
    other = Site(rabbitmq_root, tmp_path, OfflineRoot(tmp_path / "stick", "a passphrase of some length"))
    with other.cluster:
        try:
            coordinator, device = other.coordinator(), other.agent("pi-1")
            device.transport.publish(topics.up("fed", "pi-1", "hello"), b"")
            coordinator.wait_for(topics.up("fed", "pi-1", "hello"))
            with pytest.raises(AccessDenied, match="--cert and --key"):
                other.agent("pi-gone")
        finally:
            for client in other.clients:
                client.transport.stop()


def test_revoked_device_loses_its_open_connection_and_every_next_one(site: Site) -> None:
    coordinator, device, other = site.coordinator(), site.agent("pi-3"), site.agent("pi-1")
    device.transport.publish(topics.up("fed", "pi-3", "hello"), b"before")
    coordinator.wait_for(topics.up("fed", "pi-3", "hello"))
    with Authority(site.identity) as authority:
        authority.revoke("pi-3")
    assert site.cluster.write().names.denied == ("pi-3", "pi-gone")
    started = time.monotonic()
    site.cluster.command("/etc/rabbitmq/apply")
    device.wait_until(Disconnected, 5.0)
    print(f"revoked and cut off {time.monotonic() - started:.1f} s after the script was started")
    with pytest.raises(AccessDenied):
        site.agent("pi-3")
    other.transport.publish(topics.up("fed", "pi-1", "hello"), b"still there")
    coordinator.wait_for(topics.up("fed", "pi-1", "hello"))
    site.cluster.command("/etc/rabbitmq/apply")  # may be repeated


def test_device_that_was_enrolled_later_is_let_in(site: Site) -> None:
    local_device_files(site.identity, "pi-new")
    with pytest.raises(AccessDenied):
        site.agent("pi-new")
    site.cluster.write()
    site.cluster.command("/etc/rabbitmq/apply")
    coordinator, device = site.coordinator(), site.agent("pi-new")
    device.transport.publish(topics.up("fed", "pi-new", "hello"), b"")
    coordinator.wait_for(topics.up("fed", "pi-new", "hello"))
