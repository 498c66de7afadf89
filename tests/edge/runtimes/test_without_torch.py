"""A device as it is installed: its own environment with ``apportion[onnxruntime]`` and no torch trains a round."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.opening import BrokerProcess
from edge.contracts import topics
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from edge.transport.shown_password import PASSWORD_VARIABLE
from tests.device_installation import clean_environment
from tests.edge.scripted_coordinator import ScriptedCoordinator
from tests.edge.tiny_artifact import tiny_job, write_data

pytestmark = [pytest.mark.slow, pytest.mark.broker]


@pytest.fixture
def coordinator(amqtt_broker: BrokerProcess) -> Iterator[ScriptedCoordinator]:
    address = amqtt_broker.address
    url = address.url.replace("mqtt://", f"mqtt://{address.user}:{address.password}@")
    made = ScriptedCoordinator(
        MqttTransport(parse_broker(url), client_id="coordinator", subscriptions=[topics.coordinator_filter("fed")])
    )
    made.start()
    yield made
    made.stop()


def test_device_without_torch_trains_a_round(
    device_environment: Path, coordinator: ScriptedCoordinator, amqtt_broker: BrokerProcess, tmp_path: Path
) -> None:
    python, home = str(device_environment / "python"), tmp_path / "home"
    home.mkdir()
    for module in ("torch", "onnx", "amqtt"):
        assert subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, cwd=home).returncode
    write_data(home / "data")
    job = tiny_job()
    coordinator.blobs.update(job.blobs)
    address = amqtt_broker.address
    command = [str(device_environment / "apportion"), "agent", "--broker", address.url, "--user", address.user]
    command += ["--federation", "fed", "--device", "dev-1", "--data", "data", "--store", "store", "--once"]
    environment = {**clean_environment(), PASSWORD_VARIABLE: address.password}
    agent = subprocess.Popen(command, cwd=home, env=environment)
    try:
        coordinator.wait_for("hello")
        coordinator.order(job.order)
        report = coordinator.wait_for("report")
        assert agent.wait(20) == 0
    finally:
        agent.kill()
        agent.wait()
    assert report.steps == 8
    assert report.torch_loaded is False


def test_device_without_coordinator_says_what_to_install(device_environment: Path, tmp_path: Path) -> None:
    command = [str(device_environment / "apportion"), "demo"]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "apportion[coordinator]" in done.stderr
