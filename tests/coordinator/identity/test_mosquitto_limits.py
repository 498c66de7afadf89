"""Mosquitto as configured for a large fleet: what all devices say at once is kept for a busy coordinator."""

from __future__ import annotations

import os
import queue
import socket
import time
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from coordinator.brokers.broker_files import LIMITS_NAME, write_broker_folder
from coordinator.brokers.mosquitto import find_mosquitto, mosquitto_config
from coordinator.brokers.opening import BrokerProcess
from coordinator.identity.authority import Authority
from tests.mosquitto import running_mosquitto

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)"),
]


def connected(broker: BrokerProcess, name: str, *, manual_ack: bool = False) -> mqtt.Client:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, manual_ack=manual_ack)
    client.username_pw_set(broker.address.user, broker.address.password)
    client.max_inflight_messages_set(1000)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", int(broker.address.url.rpartition(":")[2]))
    return client


def test_three_thousand_messages_wait_for_a_busy_coordinator(tmp_path: Path) -> None:
    """1,000, as it was, dropped 55% of 10,000 that were sent at once."""
    arrived: queue.SimpleQueue[mqtt.MQTTMessage] = queue.SimpleQueue()
    with BrokerProcess("mosquitto", tmp_path) as broker:
        coordinator, devices = connected(broker, "co", manual_ack=True), connected(broker, "devices")
        subscribed: queue.SimpleQueue[int] = queue.SimpleQueue()
        coordinator.on_message = lambda client, data, message: arrived.put(message)
        coordinator.on_subscribe = lambda client, data, mid, reasons, properties: subscribed.put(mid)
        coordinator.subscribe("up/#", 1)
        coordinator.loop_start()
        devices.loop_start()
        subscribed.get(timeout=5)
        sent = [devices.publish(f"up/pi-{i}/hello", b"x" * 600, qos=1) for i in range(3000)]
        for info in sent:
            info.wait_for_publish(30)
        heard = set()
        while len(heard) < 3000:  # the coordinator has taken none before the last was sent
            message = arrived.get(timeout=10)
            heard.add(message.topic)
            coordinator.ack(message.mid, message.qos)
        for client in (coordinator, devices):
            client.disconnect()
            client.loop_stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
def test_messages_that_a_device_asks_to_retain_are_not_kept(tmp_path: Path, kind: str) -> None:
    arrived: queue.SimpleQueue[mqtt.MQTTMessage] = queue.SimpleQueue()
    with BrokerProcess(kind, tmp_path) as broker:
        device = connected(broker, "device")
        device.loop_start()
        device.publish("up/pi-1/hello", b"kept?", qos=0, retain=True)
        time.sleep(0.2)  # Mosquitto ends a connection that asks for it
        device.disconnect()
        device.loop_stop()
        coordinator = connected(broker, "co")
        coordinator.on_message = lambda client, data, message: arrived.put(message)
        coordinator.loop_start()
        coordinator.subscribe("up/#", 1)
        coordinator.publish("up/pi-9/hello", b"last", qos=1).wait_for_publish(5)
        assert arrived.get(timeout=5).payload == b"last"
        assert arrived.empty()
        coordinator.disconnect()
        coordinator.loop_stop()


def test_limits_grow_with_the_fleet() -> None:
    small, large = (
        dict(
            line.split(" ", 1) for line in mosquitto_config(Path("/x"), 1, None, None, devices=n).decode().splitlines()
        )
        for n in (100, 10_000)
    )
    assert (small["max_queued_messages"], large["max_queued_messages"]) == ("1000", "40000")
    assert (small["max_connections"], large["max_connections"]) == ("210", "11100")
    assert int(large["memory_limit"]) == 256 * 2**20 + 10_000 * 64 * 2**10


def test_folder_is_taken_by_include_dir_and_tells_systemd_of_open_files(tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        authority.issue_server(["localhost"])
    out, system = tmp_path / "broker", tmp_path / "mosquitto.conf"

    def write(port: int) -> Path:
        write_broker_folder(tmp_path / "identity", out, port=port, bind="127.0.0.1", devices=5000)
        system.write_text(f"include_dir {out}\n" + ("user root\n" if os.geteuid() == 0 else ""))
        return system

    with running_mosquitto(write) as (_, port):
        socket.create_connection(("127.0.0.1", port), 1).close()
    assert (out / LIMITS_NAME).read_text() == "[Service]\nLimitNOFILE=10200\n"
