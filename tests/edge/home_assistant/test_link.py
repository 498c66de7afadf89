"""A device in its owner's home, through a real Mosquitto: what is retained, the switch, the last will."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from coordinator.brokers.mosquitto import find_mosquitto
from edge.home_assistant.discovery import BIRTH, Topics, device_id
from edge.home_assistant.home import Status
from edge.home_assistant.kept import FILE, Kept, read_kept
from edge.home_assistant.link import DENIED, HomeAssistantLink
from edge.transport.broker_address import BrokerAddress, parse_broker
from profiles.device import DeviceProfile
from tests.conftest import NO_MOSQUITTO
from tests.edge.agent_bench import Bench
from tests.edge.home_assistant.documented_keys import check_discovery
from tests.mosquitto import running_mosquitto
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

TOPICS = Topics(device_id("fed", "dev-1"))


class HomeAssistant:
    """Hears everything at the owner's broker, as Home Assistant would after a restart: retained messages first."""

    def __init__(self, address: BrokerAddress) -> None:
        self.heard: dict[str, bytes] = {}
        self.retained: set[str] = set()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="home-assistant")
        if address.username is not None:
            self._client.username_pw_set(address.username, address.password)
        self._client.on_message = self._on_message
        self._is_ready = threading.Event()
        self._client.on_subscribe = lambda *given: self._is_ready.set()
        self._client.connect(address.host, address.port)
        self._client.loop_start()
        self._client.subscribe("#", qos=1)
        assert self._is_ready.wait(5)

    def _on_message(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        self.heard[message.topic] = message.payload
        if message.retain:
            self.retained.add(message.topic)

    def say(self, topic: str, payload: str) -> None:
        self._client.publish(topic, payload, qos=1).wait_for_publish(5)

    def forget(self, topic: str) -> None:
        self._client.publish(topic, b"", qos=1, retain=True).wait_for_publish(5)

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.heard.get(TOPICS.state) or b"{}")
        return found

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets(sockpair_only=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerAddress]:
    """A Mosquitto as an owner has it at home: no federation knows of it."""
    if find_mosquitto() is None:
        pytest.skip(NO_MOSQUITTO)
    config = tmp_path_factory.mktemp("owner") / "mosquitto.conf"

    def write(port: int) -> Path:
        config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
        return config

    with running_mosquitto(write) as (_, port):
        yield parse_broker(f"mqtt://127.0.0.1:{port}", option="--home-assistant", password_variable="NONE")


@pytest.fixture
def home(address: BrokerAddress) -> Iterator[HomeAssistant]:
    made = HomeAssistant(address)
    yield made
    for topic in made.heard:
        made.forget(topic)
    made.close()


def profile() -> DeviceProfile:
    return DeviceProfile(device="dev-1", budget_bytes=160 << 20, temperature_c=51.5)


def link_to(address: BrokerAddress, folder: Path) -> HomeAssistantLink:
    return HomeAssistantLink(address, federation="fed", folder=folder, profile=profile)


@pytest.fixture
def link(address: BrokerAddress, tmp_path: Path) -> Iterator[HomeAssistantLink]:
    made = link_to(address, tmp_path)
    made.begin()
    yield made
    made.close()


def test_discovery_and_state_are_retained(address: BrokerAddress, link: HomeAssistantLink) -> None:
    wait_until(lambda: link._client.is_connected())
    link.took_part(7)
    link.tick(time.monotonic(), Status("training", 8))
    time.sleep(0.2)  # all of it is at the broker before Home Assistant is there
    home = HomeAssistant(address)
    try:
        wait_until(lambda: home.state.get("last_round") == 7)
        check_discovery(TOPICS.discovery, json.loads(home.heard[TOPICS.discovery]))
        assert home.heard[TOPICS.availability] == b"online"
        assert home.state == {
            "take_part": "ON",
            "state": "training",
            "waits_for": "",
            "last_round": 7,
            "round": 8,
            "budget_mib": 160.0,
            "temperature_c": 51.5,
            "battery_percent": None,
        }
        assert {TOPICS.discovery, TOPICS.availability, TOPICS.state} <= home.retained
        # Every entity reads a value that is there.
        for entity in json.loads(home.heard[TOPICS.discovery])["components"].values():
            assert entity["value_template"].removeprefix("{{ value_json.").removesuffix(" }}") in home.state
    finally:
        home.close()


def test_device_introduces_itself_again_when_home_assistant_starts(
    home: HomeAssistant, link: HomeAssistantLink
) -> None:
    wait_until(lambda: TOPICS.discovery in home.heard)
    del home.heard[TOPICS.discovery]
    home.say(BIRTH, "online")
    wait_until(lambda: TOPICS.discovery in home.heard)


def test_a_connection_that_breaks_is_shown_by_the_last_will(home: HomeAssistant, link: HomeAssistantLink) -> None:
    wait_until(lambda: home.heard.get(TOPICS.availability) == b"online")
    opened = link._client.socket()
    assert opened is not None
    opened.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: home.heard.get(TOPICS.availability) == b"offline")
    wait_until(lambda: home.heard.get(TOPICS.availability) == b"online")  # and it comes back by itself


def test_the_switch_outlives_a_restart(
    home: HomeAssistant, link: HomeAssistantLink, address: BrokerAddress, tmp_path: Path
) -> None:
    wait_until(lambda: home.state.get("take_part") == "ON")
    assert link.denial() == ""
    home.say(TOPICS.command, "OFF")
    wait_until(lambda: home.state.get("take_part") == "OFF")
    assert link.denial() == DENIED
    assert link.tick(0.0, Status("idle"))
    assert not link.tick(0.0, Status("idle")), "is told once"
    assert home.state["waits_for"] == "the switch"
    assert link_to(address, tmp_path).denial() == DENIED
    home.say(TOPICS.command, "perhaps")
    home.say(TOPICS.command, "ON")
    wait_until(lambda: home.state.get("take_part") == "ON")
    assert link_to(address, tmp_path).denial() == ""


def test_a_damaged_file_counts_as_switched_off(tmp_path: Path) -> None:
    assert read_kept(tmp_path) == Kept()
    (tmp_path / FILE).write_bytes(b"{")
    assert read_kept(tmp_path) == Kept(take_part=False)


def test_a_broker_that_is_away_costs_nothing(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = link_to(BrokerAddress(host="127.0.0.1", port=port), tmp_path)
    link.begin()
    began = time.monotonic()
    for _ in range(10):
        assert not link.tick(time.monotonic(), Status("idle"))
    assert time.monotonic() - began < 0.5
    link.close()


@pytest.mark.slow
def test_an_agent_refuses_work_while_it_is_switched_off(
    home: HomeAssistant, address: BrokerAddress, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    try:
        first, second = bench.publish(), bench.publish(round_index=1)
        bench.agent(home=link_to(address, tmp_path))
        wait_until(lambda: home.state.get("state") == "idle")
        home.say(TOPICS.command, "OFF")
        wait_until(lambda: home.state.get("take_part") == "OFF")
        bench.coordinator.order(first.order)
        refused = bench.coordinator.wait_for("refuse")
        assert (refused.code, refused.reason) == ("policy-wait", DENIED)
        home.say(TOPICS.command, "ON")
        wait_until(lambda: home.state.get("take_part") == "ON")
        bench.coordinator.order(second.order)
        bench.coordinator.wait_for("report")
        wait_until(lambda: home.state.get("last_round") is not None)
    finally:
        bench.close()
    wait_until(lambda: home.heard.get(TOPICS.availability) == b"offline")
