"""Waiting for a device's hello over a real broker, beside a coordinator that keeps its connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import ClientFiles, coordinator_files, local_device_files
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.fleet.greeting import Greeter
from coordinator.identity.authority import Authority
from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.errors import AccessDenied, BrokerUnreachable, DeadlineExpired
from edge.contracts.messages import Heartbeat, Hello
from edge.transport.base import Event, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from profiles.device import DeviceProfile

pytestmark = [
    pytest.mark.broker,
    # A handshake that is refused leaves paho's socket to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here"),
]


class Peer:
    """A connection with the kinds of message it received; a device answers each call with a hello."""

    def __init__(self, url: str, files: ClientFiles, filters: tuple[str, ...], device: str = "") -> None:
        self.heard: list[str] = []
        self.events: list[Event] = []
        self._device = device
        self.transport = MqttTransport(
            parse_broker(url, ca=str(files.ca), certificate=str(files.certificate), key=str(files.key)),
            client_id=device or "co",
            subscriptions=filters,
        )
        self.transport.start(self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Received):
            self.heard.append(topics.kind_of(event.topic))
            if self._device and self.heard[-1] == "hello":
                self.say_hello()

    def say_hello(self) -> None:
        profile = DeviceProfile(device=self._device)
        hello = Hello(device=self._device, agent_version="1", profile=profile, runtimes={}, num_examples=7)
        self.transport.publish(topics.up("fed", self._device, "hello"), seal("hello", hello))


class Site:
    """An identity, a broker that goes by it, and who is connected."""

    def __init__(self, folder: Path) -> None:
        self.identity = folder / "identity"
        Authority.create(self.identity).close()
        coordinator_files(self.identity, "fed", issue=True)
        self.broker = BrokerProcess("mosquitto", folder / "broker", identity=self.identity)
        self.broker.start()
        self.url = self.broker.address.url
        self.peers: list[Peer] = []

    def device(self, name: str) -> Peer:
        files = local_device_files(self.identity, name)
        self.peers.append(Peer(self.url, files, topics.device_filters("fed", name), name))
        return self.peers[-1]

    def coordinator(self) -> Peer:
        files = coordinator_files(self.identity, "fed", issue=False)
        self.peers.append(Peer(self.url, files, (topics.coordinator_filter("fed"),)))
        return self.peers[-1]

    def close(self) -> None:
        for peer in self.peers:
            peer.transport.stop()
        self.broker.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def test_device_that_is_there_is_heard_and_the_coordinator_keeps_its_connection(site: Site) -> None:
    coordinator, device = site.coordinator(), site.device("pi-1")
    before = len(coordinator.events)
    with Greeter(site.url, site.identity, "fed") as greeter:
        hello = greeter.wait("pi-1", 5.0)
    assert (hello.device, hello.num_examples) == ("pi-1", 7)
    assert device.heard == ["hello"]  # it was asked, and nothing was ordered
    time.sleep(0.3)
    assert [type(event).__name__ for event in coordinator.events[before:]] == ["Received"]
    assert coordinator.heard == ["hello"]


def test_device_that_comes_later_is_called_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.fleet.greeting.ASK_EVERY_S", 0.2)
    late = threading.Timer(0.7, lambda: site.device("pi-1"))  # it says nothing by itself
    with Greeter(site.url, site.identity, "fed") as greeter:
        late.start()
        begun = time.monotonic()
        assert greeter.wait("pi-1", 10.0).device == "pi-1"
        assert time.monotonic() - begun < 5.0
        late.join()


def test_silent_device_is_a_timeout_that_says_what_was_heard(site: Site) -> None:
    device = site.device("pi-1")
    device.transport.publish(topics.up("fed", "pi-1", "heartbeat"), seal("heartbeat", Heartbeat(state="idle")))
    device._device = ""  # from here on it does not answer
    with Greeter(site.url, site.identity, "fed") as greeter:
        device.transport.publish(topics.up("fed", "pi-1", "heartbeat"), seal("heartbeat", Heartbeat(state="idle")))
        with pytest.raises(DeadlineExpired, match=r"'pi-1' said no hello over .* within 0\.6 s; it did send: heart"):
            greeter.wait("pi-1", 0.6)
        with pytest.raises(DeadlineExpired, match="nothing at all was heard of it"):
            greeter.wait("pi-2", 0.2)
        begun = time.monotonic()
        with pytest.raises(DeadlineExpired):
            greeter.wait("pi-2", 30.0, is_over=lambda: True)
        assert time.monotonic() - begun < 5.0


def test_hello_of_before_the_wait_does_not_count(site: Site) -> None:
    device = site.device("pi-1")
    with Greeter(site.url, site.identity, "fed") as greeter:
        device.say_hello()
        time.sleep(0.3)
        device.transport.stop()
        with pytest.raises(DeadlineExpired):
            greeter.wait("pi-1", 0.5)


@pytest.mark.slow
def test_two_commands_at_once_both_hear_their_device(site: Site) -> None:
    # A broker ends the older of two connections with one certificate: each comes back and calls again.
    site.device("pi-1"), site.device("pi-2")
    with (
        Greeter(site.url, site.identity, "fed") as one,
        Greeter(site.url, site.identity, "fed") as other,
    ):
        assert one.wait("pi-1", 15.0).device == "pi-1"
        assert other.wait("pi-2", 15.0).device == "pi-2"


def test_broker_that_is_not_there_names_this_machine(tmp_path: Path) -> None:
    Authority.create(tmp_path / "identity").close()
    with pytest.raises(BrokerUnreachable, match=r"from this machine mqtts://127\.0\.0\.1:9 cannot be reached") as error:
        with Greeter("mqtts://127.0.0.1:9", tmp_path / "identity", "fed", connect_timeout_s=0.5):
            pass
    assert "--no-wait" in error.value.hint


def test_broker_of_another_identity_says_how_to_mend_it(site: Site, tmp_path: Path) -> None:
    Authority.create(tmp_path / "other").close()
    (tmp_path / "other" / "ca.pem").write_bytes((site.identity / "ca.pem").read_bytes())
    with Authority.create(tmp_path / "third") as authority:
        authority.issue_fleet("fed")
    with pytest.raises(AccessDenied, match="trusted"):  # we do not trust that broker
        with Greeter(site.url, tmp_path / "third", "fed", connect_timeout_s=3):
            pass
    (tmp_path / "third" / "ca.pem").write_bytes((site.identity / "ca.pem").read_bytes())
    (tmp_path / "third" / "ca.key").write_bytes((site.identity / "ca.key").read_bytes())
    with pytest.raises(AccessDenied, match="closed the connection at once") as error:  # it does not trust us
        with Greeter(site.url, tmp_path / "third", "fed", connect_timeout_s=3):
            pass
    assert "apportion ca mosquitto" in error.value.hint
