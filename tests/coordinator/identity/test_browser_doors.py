"""Brokers with a door for browsers: whose password opens it, for which topics, and until when; measured on both."""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import local_device_files, server_files, write_broker_folder
from coordinator.brokers.mosquitto import WebSocketFiles, WebSocketListener, find_mosquitto, mosquitto_config
from coordinator.brokers.opening import BrokerProcess, open_broker
from coordinator.brokers.settings import free_port
from coordinator.config.run_config import BrokerConfig
from coordinator.fleet.revocation import revoke_device, tell_broker
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import KeyClaimed
from edge.contracts import topics
from tests.coordinator.identity.browser_device import BrowserDevice
from tests.coordinator.identity.browser_site import Client, Site
from tests.coordinator.web.test_connections import reconnecting
from tests.mosquitto import running_mosquitto

pytestmark = [
    pytest.mark.broker,
    # A connection that is refused leaves paho's socket to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(params=["embedded", "mosquitto"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    site = Site(request.param, tmp_path)
    try:
        yield site
    finally:
        site.close()


def test_browser_and_coordinator_hear_each_other(site: Site) -> None:
    coordinator, phone = site.coordinator(), site.joined("phone-1")
    for own in topics.device_filters("fed", "phone-1"):
        assert phone.subscribe(own) == "Granted QoS 1"
    phone.mqtt.publish(topics.up("fed", "phone-1", "hello"), b"up", 1)
    assert coordinator.expect("message") == topics.up("fed", "phone-1", "hello")
    coordinator.mqtt.publish(topics.down("fed", "phone-1", "order"), b"down", 1)
    assert phone.expect("message") == topics.down("fed", "phone-1", "order")
    coordinator.mqtt.publish(topics.everyone("fed", "hello"), b"all", 1)
    assert phone.expect("message") == topics.everyone("fed", "hello")
    phone.mqtt.publish(topics.up("fed", "phone-1", "put"), b"x" * 262_144, 1)
    assert coordinator.expect("message") == topics.up("fed", "phone-1", "put")


@pytest.mark.slow
def test_password_opens_its_own_door_only(site: Site) -> None:
    one, two = site.enrol("phone-1"), site.enrol("phone-2")
    for user, password in (
        ("", ""),
        ("phone-1", ""),
        ("phone-1", two.password),
        ("phone-1", one.password + "x"),
        ("phone-3", one.password),
        ("@fed", one.password),
        ("phone-1:", one.password),
    ):
        assert site.client().open(site.port, user, password) == "Not authorized", user
    again = site.client()
    assert again.open(site.port, one.user, one.password) == "Success"


@pytest.mark.slow
@pytest.mark.parametrize("site", ["embedded"], indirect=True)
def test_device_connects_beside_500_sockets_that_never_say_who_they_are(site: Site) -> None:
    phone = site.enrol("phone-1")
    with reconnecting("127.0.0.2", site.port, 500, "websocket"):
        began = time.monotonic()
        assert site.client().open(site.port, phone.user, phone.password) == "Success"
        assert time.monotonic() - began < 4.0


@pytest.mark.slow
def test_browser_speaks_and_listens_on_its_own_topics_only(site: Site) -> None:
    coordinator, victim = site.coordinator(), site.joined("phone-1")
    thief = site.joined("phone-2")
    assert victim.subscribe(topics.device_filters("fed", "phone-1")[0]) == "Granted QoS 1"
    for filtered in (
        "#",
        "apportion/#",
        "apportion/v1/fed/up/#",
        "apportion/v1/fed/dn/phone-1/#",
        "apportion/v1/+/dn/#",
    ):
        thief.subscribe(filtered)  # Mosquitto grants what it then never sends
    for topic in (
        topics.up("fed", "phone-1", "hello"),
        topics.down("fed", "phone-1", "order"),
        topics.everyone("fed", "hello"),
        "apportion/v1/fed/up",
        "elsewhere",
    ):
        thief.mqtt.publish(topic, b"forged", 1)
    victim.mqtt.publish(topics.up("fed", "phone-1", "hello"), b"own", 1)
    coordinator.mqtt.publish(topics.down("fed", "phone-1", "order"), b"secret", 1)
    assert coordinator.expect("message") == topics.up("fed", "phone-1", "hello")
    assert victim.expect("message") == topics.down("fed", "phone-1", "order")
    assert coordinator.is_quiet()
    assert victim.is_quiet()
    assert thief.is_quiet()


@pytest.mark.slow
def test_last_will_for_the_topic_of_another_is_not_sent(site: Site) -> None:
    coordinator, claimed = site.coordinator(), site.enrol("phone-2")
    thief = site.client()
    thief.mqtt.will_set(topics.up("fed", "phone-1", "bye"), b"forged", 1)
    assert thief.open(site.port, claimed.user, claimed.password) == "Success"
    sock = thief.mqtt.socket()
    assert sock is not None
    sock.close()
    assert coordinator.is_quiet()
    own = site.client()
    own.mqtt.will_set(topics.up("fed", "phone-2", "bye"), b"own", 1)
    assert own.open(site.port, claimed.user, claimed.password) == "Success"
    sock = own.mqtt.socket()
    assert sock is not None
    sock.close()
    assert coordinator.expect("message") == topics.up("fed", "phone-2", "bye")


@pytest.mark.slow
def test_borrowed_client_id_ends_nobody(site: Site) -> None:
    victim = site.joined("phone-1")
    assert victim.subscribe(topics.device_filters("fed", "phone-1")[0]) == "Granted QoS 1"
    for name in ("phone-1", "fed/phone-1", "browser/phone-1"):
        assert site.client(name).open(site.port, "phone-1", "guess") == "Not authorized"
    thief, claimed = site.client("fed/phone-1"), site.enrol("phone-2")
    assert thief.open(site.port, claimed.user, claimed.password) == "Success"
    coordinator = site.coordinator()
    coordinator.mqtt.publish(topics.down("fed", "phone-1", "order"), b"still here", 1)
    assert victim.expect("message") == topics.down("fed", "phone-1", "order")


@pytest.mark.slow
def test_revoked_device_is_out_at_once_and_others_stay(site: Site) -> None:
    coordinator, lost, other = site.coordinator(), site.joined("phone-1"), site.joined("phone-2")
    lost.subscribe(topics.device_filters("fed", "phone-1")[0])
    revoke_device(site.identity, "phone-1", reason="lost")
    news = tell_broker(site.identity, site.folder)
    assert (news.pid, news.commands) == (site.broker.pid, ())
    lost.expect("end")
    lost.mqtt.publish(topics.up("fed", "phone-1", "hello"), b"late", 1)
    other.mqtt.publish(topics.up("fed", "phone-2", "hello"), b"here", 1)
    assert coordinator.expect("message") == topics.up("fed", "phone-2", "hello")
    assert coordinator.is_quiet()
    assert site.client().open(site.port, "phone-1", "anything") == "Not authorized"
    assert site.joined("phone-3").is_quiet()  # claims go on, and end nobody's connection
    assert other.is_quiet()


def test_broker_started_again_has_the_same_door_and_users(site: Site) -> None:
    claimed = site.enrol("phone-1")
    kept = site.broker.address
    site.broker.restart()
    assert site.broker.address == kept
    assert site.client().open(site.port, claimed.user, claimed.password) == "Success"


def is_refused(client: Client, port: int, claimed: KeyClaimed) -> bool:
    """Whether it is cut off, in its handshake or right after it."""
    try:
        return client.open(port, claimed.user, claimed.password).startswith("ended")
    except ssl.SSLError:
        return True


def test_certificate_listener_takes_no_password(tmp_path: Path) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    site = Site("mosquitto", tmp_path)
    try:
        claimed = site.enrol("phone-1")
        port = int(site.broker.address.url.rsplit(":", 1)[1])
        bare = site.client(tcp=True)
        bare.mqtt.tls_set(str(site.identity / "ca.pem"))
        assert is_refused(bare, port, claimed)
        plain = site.client(tcp=True)
        assert is_refused(plain, port, claimed)
        # With a certificate the password is not looked at, and the name is the certificate's.
        files = local_device_files(site.identity, "pi-1")
        site.broker.reload()
        coordinator, pretender = site.coordinator(), site.client(tcp=True)
        pretender.mqtt.tls_set(str(files.ca), str(files.certificate), str(files.key))
        assert pretender.open(port, claimed.user, claimed.password) == "Success"
        pretender.mqtt.publish(topics.up("fed", "phone-1", "hello"), b"forged", 1)
        pretender.mqtt.publish(topics.up("fed", "pi-1", "hello"), b"own", 1)
        assert coordinator.expect("message") == topics.up("fed", "pi-1", "hello")
    finally:
        site.close()


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_door_with_a_certificate_speaks_tls(kind: str, tmp_path: Path) -> None:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    with Authority.create(tmp_path / "own" / "identity") as authority:
        authority.issue_server(["localhost", "127.0.0.1"])
        own = authority.folder.root
    certificate, key = server_files(own, "localhost")
    site = Site(kind, tmp_path, WebSocketListener("", certificate, key, host="localhost"))
    try:
        assert site.broker.address.web_socket == f"wss://localhost:{site.port}"
        claimed, client = site.enrol("phone-1"), site.client()
        client.mqtt.tls_set(str(own / "ca.pem"))
        assert client.open(site.port, claimed.user, claimed.password) == "Success"
    finally:
        site.close()


def test_packet_that_is_too_large_ends_the_connection_of_the_embedded_broker(tmp_path: Path) -> None:
    site = Site("embedded", tmp_path)
    try:
        phone, other = site.joined("phone-1"), site.joined("phone-2")
        phone.mqtt.publish(topics.up("fed", "phone-1", "put"), b"x" * 400_000)
        phone.expect("end")
        assert other.is_quiet()
    finally:
        site.close()


def test_folder_for_a_broker_elsewhere_has_the_door_and_its_users(tmp_path: Path) -> None:
    identity, out = tmp_path / "identity", tmp_path / "out"
    with Authority.create(identity) as authority:
        authority.issue_server(["broker.local"])
    phone = BrowserDevice("phone-1")
    phone.enrol(identity)
    config = write_broker_folder(identity, out, web_socket_port=8084, at=Path("/etc/broker")).read_text()
    _, mutual, web = config.split("listener ")
    assert web.splitlines() == [
        "8084",
        "max_connections 11100",
        "protocol websockets",
        "password_file /etc/broker/passwords",
        "use_username_as_clientid true",
        "certfile /etc/broker/server.pem",
        "keyfile /etc/broker/server.key",
        "tls_version tlsv1.2",
    ]
    assert "require_certificate true" in mutual
    assert (out / "passwords").read_text().startswith("phone-1:$7$")
    assert (out / "passwords").stat().st_mode & 0o777 == 0o600
    revoke_device(identity, "phone-1", reason="lost")
    assert tell_broker(identity, out).commands
    assert (out / "passwords").read_text() == ""
    assert "websockets" not in write_broker_folder(identity, out).read_text()
    assert not (out / "passwords").exists()


def test_door_without_topic_rules_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs the topic rules"):
        mosquitto_config(tmp_path, 1, None, None, web_socket=WebSocketFiles(2, "", tmp_path / "passwords"))
    with pytest.raises(ValueError, match="by an identity"):
        BrokerProcess("embedded", tmp_path, web_socket=WebSocketListener())


def test_embedded_broker_without_browsers_outlives_a_signal(tmp_path: Path) -> None:
    with BrokerProcess("embedded", tmp_path) as process:
        process.reload()
        os.kill(process.pid, signal.SIGHUP)
        time.sleep(0.1)
        client = Client("x", tcp=True)
        address = process.address
        assert client.open(int(address.url.rsplit(":", 1)[1]), address.user, address.password) == "Success"
        client.close()


def test_broker_elsewhere_runs_from_its_folder(tmp_path: Path) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    identity, out, ports = tmp_path / "identity", tmp_path / "out", list[int]()
    with Authority.create(identity) as authority:
        authority.issue_server(["localhost", "127.0.0.1"])
    claimed = BrowserDevice("phone-1").enrol(identity)

    def write(port: int) -> Path:
        ports[:] = [free_port()]
        config = write_broker_folder(identity, out, port=port, bind="127.0.0.1", web_socket_port=ports[0])
        # The system's package changes to a user of its own; here it may not, or could not read the folder.
        (tmp_path / "own.conf").write_text(f"user root\n{config.read_text()}")
        return tmp_path / "own.conf"

    with running_mosquitto(write, more_ports=lambda: ports):
        client = Client("x")
        client.mqtt.tls_set(str(identity / "ca.pem"))
        assert client.open(ports[0], claimed.user, claimed.password) == "Success"
        client.close()


def test_embedded_broker_of_a_run_lets_agents_in_by_its_user_and_browsers_by_theirs(tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    Authority.create(identity).close()
    config = BrokerConfig(url="embedded", identity=str(identity))
    with open_broker(config, tmp_path / "broker", federation="fed", web_socket=WebSocketListener()) as address:
        assert (address.kind, address.identity, bool(address.password)) == ("amqtt", None, True)
        claimed = BrowserDevice("phone-1").enrol(identity)
        address.reload()
        phone, thief = Client("a"), Client("b")
        port = int(address.web_socket.rsplit(":", 1)[1])
        assert phone.open(port, claimed.user, claimed.password) == "Success"
        assert thief.open(port, address.user, address.password) == "Not authorized"
        phone.close()
        thief.close()
