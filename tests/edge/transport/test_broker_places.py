"""A broker with several addresses: whoever loses one goes on at the next, and starts where one of them answers."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import local_device_files
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.identity.authority import Authority
from edge.contracts import topics
from edge.transport.base import Connected, Disconnected, Event
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Site:
    """Two brokers that know the same device, a place where nobody is, and that device."""

    def __init__(self, folder: Path) -> None:
        identity = folder / "identity"
        Authority.create(identity).close()
        files = local_device_files(identity, "pi-1")
        self.brokers = [BrokerProcess("mosquitto", folder / name, identity=identity) for name in ("a", "b")]
        ports = [broker.address.url.rpartition(":")[2] for broker in self.brokers]
        url = "mqtts://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        address = parse_broker(url, ca=str(files.ca), certificate=str(files.certificate), key=str(files.key))
        client_id = address.client_id("pi-1", "pi-1")
        if address.places_for(client_id)[0] != address.places[0]:  # the device begins at the first
            self.brokers.reverse()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        filters = topics.device_filters("fed", "pi-1")
        self.transport = MqttTransport(address, client_id=client_id, subscriptions=filters)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.transport.stop()
        for broker in site.brokers:
            broker.stop(kill=True)


@pytest.mark.slow
def test_connection_starts_where_a_broker_answers_and_goes_on_at_the_next(site: Site) -> None:
    site.brokers[1].start()
    site.transport.start(site.events.put)
    assert site.events.get(timeout=5) == Connected()
    for gone, there in ((1, 0), (0, 1)):
        site.brokers[there].start()
        site.brokers[gone].stop(kill=True)
        assert isinstance(site.events.get(timeout=5), Disconnected)
        assert site.events.get(timeout=10) == Connected()


@pytest.mark.slow
def test_broker_that_falls_silent_is_left_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """paho tells of it twice; two steps among two brokers would lead back to the silent one."""
    monkeypatch.setattr("edge.transport.mqtt.KEEPALIVE_S", 1)
    for broker in site.brokers:
        broker.start()
    site.transport.start(site.events.put)
    assert site.events.get(timeout=5) == Connected()
    os.kill(site.brokers[0].pid, signal.SIGSTOP)
    assert isinstance(site.events.get(timeout=10), Disconnected)
    started = time.monotonic()
    assert site.events.get(timeout=10) == Connected()
    assert time.monotonic() - started < 4.0
