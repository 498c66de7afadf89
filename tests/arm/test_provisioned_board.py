"""One command makes a device of an aarch64 host over SSH; it trains a round over MQTT; revoked, it is refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.data.datasets import load_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.run_file.loading import load_config_text
from tests.arm.boards import BOARDS
from tests.arm.federation_site import FEDERATION, Site
from tests.coordinator.fleet.ssh_server import SshServer
from tests.federation.small_run import config_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.runtime,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)"),
]

DEVICE = "pi-4"
FOLDER = f".apportion/{DEVICE}"
REFUSED_S = 60.0
REFUSED_STATUS = "3"
"""Exit status of an agent that a broker does not let in."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder)
    try:
        yield site
    finally:
        site.close()


def give_data(host: SshServer, folder: Path) -> int:
    """Examples in the host's ``~/data``, as its owner has them; how many."""
    config = load_config_text(config_text(local=1, size=1))
    dataset = load_dataset("digits", None, config.federation.seed)
    (place,) = local_devices(config, dataset, folder, None)
    shutil.copytree(place.folder / "data", host.home / "data")
    return len(dataset.y_train)


def add_command(host: SshServer, site: Site) -> list[str]:
    """The one command."""
    words = ["device", "add", f"pi@{host.host}", "--port", str(host.port), "--key", str(host.keys.client)]
    words += ["--accept-host-key", host.keys.fingerprint, "--device", DEVICE, "--data", "~/data"]
    words += ["--federation", FEDERATION, "--broker", site.url, "--identity", "identity"]
    return [*words, "--broker-folder", "broker", "--wait-s", "300", "--json"]


def test_one_command_makes_a_device_that_trains_until_it_is_revoked(
    pi_4: SshServer, site: Site, tmp_path: Path
) -> None:
    examples = give_data(pi_4, tmp_path / "shares")
    owned = pi_4.listing()

    added = site.succeed(*add_command(pi_4, site))
    (device,) = added.values["devices"]
    print(f"added in {added.seconds:.1f} s:\n{added.stderr}")
    assert (device["device"], device["machine"], device["examples"]) == (DEVICE, "aarch64", examples)
    assert {"wheels", "environment", "certificate", "service", "start"} <= set(device["changed"])
    stored = json.loads((site.folder / device["profile"]).read_text())
    assert stored["profile"]["board"] == BOARDS[1].model
    assert pi_4.run(f"find {FOLDER}/ -type d -name 'torch*'") == ""
    assert pi_4.run(f"find {FOLDER}/ -type d -name onnxruntime") != ""
    assert oct((pi_4.home / FOLDER / "identity/device.key").stat().st_mode & 0o777) == "0o600"

    again = site.succeed(*add_command(pi_4, site))
    print(f"again, nothing to do: {again.seconds:.1f} s")
    assert again.values["devices"][0]["changed"] == []

    broker = f'url = "{site.url}"\nidentity = "{site.folder}/identity"'
    (site.folder / "run.toml").write_text(config_text(broker=broker, local=0, size=1, rounds=1))
    trained = site.succeed("run", "run.toml", "--run-dir", "run", "--json")
    with Ledger.open(site.folder / "run/ledger.sqlite") as ledger:
        profile = ledger.profiles.all()[DEVICE]
        (update,) = ledger.updates.of_attempt(0, 0)
    report = update.report
    print(f"a round: {trained.seconds:.1f} s, {report.steps} steps of {report.step_ms_p50:.0f} ms")
    assert (profile.machine, profile.board) == ("aarch64", BOARDS[1].model)
    assert (report.runtime, report.torch_loaded, report.num_examples) == ("onnxruntime", False, examples)
    assert report.steps == -(-examples // 16)
    assert 0.0 < report.loss < 2.5

    revoked = site.succeed("device", "revoke", DEVICE, "--keep-files", "--key", str(pi_4.keys.client), "--json")
    print(f"revoked in {revoked.seconds:.1f} s")
    assert len(revoked.values["revoked"]) == 1
    assert revoked.values["broker"]["pid"] is not None
    since = len(site.broker_log.read_text())
    assert status_of_next_start(pi_4) == REFUSED_STATUS
    assert "check --cert and --key" in pi_4.run(f"tail -n 1 {FOLDER}/agent.log")
    told = site.broker_log.read_text()[since:]
    print(told)
    assert "certificate" in told

    removed = site.succeed("device", "revoke", DEVICE, "--key", str(pi_4.keys.client), "--json")
    print(f"removed in {removed.seconds:.1f} s")
    assert removed.values["removed"] == ["service", "folder"]
    assert pi_4.listing() == owned


def status_of_next_start(host: SshServer) -> str:
    """Exit status of the agent when its service is started again."""
    host.run(f"sh {FOLDER}/run-agent stop && rm -f {FOLDER}/last-status && sh {FOLDER}/run-agent start")
    give_up_at = time.monotonic() + REFUSED_S
    while time.monotonic() < give_up_at:
        if (host.home / FOLDER / "last-status").exists():
            return (host.home / FOLDER / "last-status").read_text().strip()
        time.sleep(0.2)
    raise AssertionError(f"the agent does not end: {host.run(f'tail {FOLDER}/agent.log')}")
