"""The relay as a process, killed with SIGKILL wherever it can be told apart: it goes on and ends with the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.opening import BrokerProcess
from edge.contracts import topics
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from edge.transport.shown_password import PASSWORD_VARIABLE
from tests.device_installation import clean_environment
from tests.edge.relay.site_bench import RELAY, SITE, ScriptedDevice, assert_is, expected_mean, site_job
from tests.edge.scripted_coordinator import ScriptedCoordinator
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

MODULE = (sys.executable, "-m", "edge")


class SiteOfProcesses:
    """A scripted coordinator and scripted devices at one broker, the relay a process of its own."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.folder = folder
        self._broker = broker
        self.coordinator = ScriptedCoordinator(self._transport("co", topics.coordinator_filter("fed")), device=RELAY)
        self.coordinator.start()
        self.devices: list[ScriptedDevice] = []
        self.relay: subprocess.Popen[bytes] | None = None

    def _transport(self, name: str, *subscriptions: str) -> MqttTransport:
        address = self._broker.address
        url = address.url.replace("mqtt://", f"mqtt://{address.user}:{address.password}@")
        return MqttTransport(parse_broker(url), client_id=name, subscriptions=subscriptions)

    def device(self, name: str, *, examples: int, add: float) -> ScriptedDevice:
        transport = self._transport(name, *topics.device_filters(SITE, name))
        device = ScriptedDevice(name, transport, self.folder / name, examples=examples, add=add)
        self.devices.append(device)
        device.start()
        return device

    def start_relay(self, command: tuple[str, ...] = MODULE, **options: object) -> None:
        address = self._broker.address
        words = [*command, "relay", "--broker", address.url, "--user", address.user]
        words += ["--site-broker", address.url, "--site-user", address.user, "--site", SITE]
        words += ["--federation", "fed", "--device", RELAY, "--store", str(self.folder / "relay"), "--min-devices", "2"]
        environment = {**clean_environment(), PASSWORD_VARIABLE: address.password}
        self.relay = subprocess.Popen(words, env=environment, **options)  # type: ignore[call-overload]

    def kill(self) -> None:
        assert self.relay is not None
        self.relay.send_signal(signal.SIGKILL)
        assert self.relay.wait(10) == -signal.SIGKILL

    def has(self, pattern: str) -> bool:
        return any((self.folder / "relay").glob(pattern))

    def close(self) -> None:
        if self.relay is not None and self.relay.poll() is None:
            self.relay.terminate()
            assert self.relay.wait(15) == 0
        for device in self.devices:
            device.stop()
        self.coordinator.stop()


@pytest.fixture
def processes(amqtt_broker: BrokerProcess, tmp_path: Path) -> Iterator[SiteOfProcesses]:
    made = SiteOfProcesses(amqtt_broker, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("stage", ["fetching", "handed-out", "one-update", "uploading", "unacknowledged"])
def test_killed_relay_goes_on_from_its_folder_and_ends_with_the_same_bits(
    processes: SiteOfProcesses, stage: str
) -> None:
    coordinator = processes.coordinator
    processes.start_relay()
    first = processes.device("a", examples=30, add=0.1)
    second = processes.device("b", examples=10, add=-0.7)
    coordinator.wait_for("hello", where=lambda hello: hello.num_examples == 40)
    job = site_job()
    coordinator.blobs.update(job.blobs)
    if stage in ("handed-out", "one-update", "uploading"):
        second.is_working.clear()
    if stage == "handed-out":
        first.is_working.clear()
    coordinator.is_serving = stage != "fetching"
    coordinator.is_acking = stage != "unacknowledged"
    coordinator.order(job.order)
    if stage == "fetching":
        coordinator.wait_for("get")
    elif stage == "handed-out":
        wait_until(lambda: first.orders and second.orders, "handed out")
    elif stage == "one-update":
        wait_until(lambda: first.acks and second.orders, "one update is in")
    elif stage == "uploading":
        wait_until(lambda: first.orders and second.orders, "handed out")
        coordinator.is_serving = False
        second.is_working.set()
        coordinator.wait_for("offer")
    else:
        coordinator.wait_for("report")
    processes.kill()
    coordinator.is_serving = coordinator.is_acking = True
    for device in processes.devices:
        device.is_working.set()
    orders_before = len(first.orders)
    seen = coordinator.kinds().count("report")
    processes.start_relay()
    if stage == "fetching":
        coordinator.wait_for("hello", where=lambda hello: hello.assignment_id == job.order.assignment_id)
    coordinator.wait_for("report", count=seen + 1, timeout_s=60)
    assert_is(coordinator.updates[job.order.assignment_id], expected_mean(job, first, second))
    assert coordinator.reports[job.order.assignment_id].site_devices == 2
    assert (len(first.trained), len(second.trained)) == (1, 1)
    if stage in ("one-update", "uploading", "unacknowledged"):
        assert len(first.orders) == orders_before  # acknowledged: it is not asked again
    wait_until(lambda: not processes.has("site/*") and not processes.has("work/*"), "the work's folders are removed")


def test_round_over_mosquitto(mosquitto_broker: BrokerProcess, tmp_path: Path) -> None:
    site = SiteOfProcesses(mosquitto_broker, tmp_path)
    try:
        play_a_round(site)
    finally:
        site.close()


def test_relay_is_installed_and_sums_without_torch(
    device_environment: Path, amqtt_broker: BrokerProcess, tmp_path: Path
) -> None:
    python = str(device_environment / "python")
    for module in ("torch", "onnx", "sqlalchemy"):
        assert subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, cwd=tmp_path).returncode
    site = SiteOfProcesses(amqtt_broker, tmp_path)
    try:
        play_a_round(site, (str(device_environment / "apportion"),), cwd=tmp_path)
    finally:
        site.close()


def play_a_round(site: SiteOfProcesses, command: tuple[str, ...] = MODULE, **options: object) -> None:
    site.start_relay(command, **options)
    first = site.device("a", examples=30, add=0.1)
    second = site.device("b", examples=10, add=-0.7)
    site.coordinator.wait_for("hello", where=lambda hello: hello.num_examples == 40)
    job = site_job()
    site.coordinator.blobs.update(job.blobs)
    site.coordinator.order(job.order)
    site.coordinator.wait_for("report")
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, first, second))


def test_relay_needs_no_federation_of_its_own_name_twice_at_one_broker(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "edge", "relay", "--broker", "mqtt://localhost", "--site-broker", "mqtt://localhost"]
    words += ["--federation", "fed", "--device", "hall", "--site", "fed", "--store", str(tmp_path), "--share", "2"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "'fed' at this broker is the federation above" in done.stderr
    assert "--share: 2 given" in done.stderr
