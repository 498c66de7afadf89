"""A device whose installation has no torch takes part in a federation from hello to the last round."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from coordinator.brokers.opening import BrokerProcess
from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.data.datasets import load_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.run_file.loading import load_config_text
from edge.transport.shown_password import PASSWORD_VARIABLE
from tests.device_installation import clean_environment
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.runtime]

ROUNDS = 2


def test_federation_of_a_device_without_torch(
    device_environment: Path, amqtt_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, address = device_environment / "python", amqtt_broker.address
    done = subprocess.run(
        [python, "-c", "import torch"], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True
    )
    assert "No module named 'torch'" in done.stderr
    with_data = load_config_text(config_text(local=1, size=1))
    (device,) = local_devices(with_data, load_dataset("digits", None, 3), tmp_path / "outside", None)
    command = [device_environment / "apportion", "agent", "--broker", address.url, "--user", address.user]
    command += ["--federation", "small", "--device", device.device, "--data", "data", "--store", "store"]
    monkeypatch.setenv("APPORTION_SMALL_RUN_PASSWORD", address.password)
    broker = f'url = "{address.url}"\nuser = "{address.user}"\npassword-env = "APPORTION_SMALL_RUN_PASSWORD"'
    agent = subprocess.Popen(
        command,
        cwd=device.folder,
        env={**clean_environment(), PASSWORD_VARIABLE: address.password},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        text = config_text(broker=broker, local=0, size=1, rounds=ROUNDS)
        summary = start_run(load_config_text(text), tmp_path / "run", RunOptions(quiet=True))
    finally:
        agent.terminate()
        _, log = agent.communicate(timeout=10)
    assert agent.returncode == 0, log
    assert summary["torch_loaded_on_devices"] is False
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        reports = [update.report for index in range(ROUNDS) for update in ledger.updates.of_attempt(index, 0)]
    assert [(report.round, report.torch_loaded) for report in reports] == [(0, False), (1, False)]


def test_coordinator_verbs_on_a_device_name_what_to_install(device_environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [device_environment / "apportion", "run", "run.toml", "--json"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "this installation has the device agent only (No module named" in done.stderr
    assert "pip install 'apportion[coordinator]'" in done.stderr
    assert "Traceback" not in done.stderr
