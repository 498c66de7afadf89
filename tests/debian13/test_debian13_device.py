"""A host as it comes with Python 3.13: one command makes a device of it, which trains a round with a coordinator."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.data.datasets import load_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.run_file.loading import load_config_text
from tests.arm.federation_site import FEDERATION, Site
from tests.coordinator.fleet.private_namespace import Unavailable
from tests.coordinator.fleet.ssh_server import SshServer
from tests.debian13.host import prepare, running_host
from tests.federation.small_run import config_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.runtime,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)"),
]

DEVICE = "pi-13"
PYTHON = f".apportion/{DEVICE}/environment/bin/python"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshServer]:
    try:
        with running_host(tmp_path / "host", prepare()) as server:
            yield server
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site")
    try:
        yield site
    finally:
        site.close()


def test_host_with_python_3_13_becomes_a_device_that_trains(host: SshServer, site: Site, tmp_path: Path) -> None:
    config = load_config_text(config_text(local=1, size=1))
    dataset = load_dataset("digits", None, config.federation.seed)
    (place,) = local_devices(config, dataset, tmp_path / "shares", None)
    shutil.copytree(place.folder / "data", host.home / "data")

    words = ["device", "add", f"pi@{host.host}", "--port", str(host.port), "--key", str(host.keys.client)]
    words += ["--accept-host-key", host.keys.fingerprint, "--device", DEVICE, "--data", "~/data"]
    words += ["--federation", FEDERATION, "--broker", site.url, "--identity", "identity", "--broker-folder", "broker"]
    added = site.succeed(*words, "--wait-s", "120", "--json")
    (device,) = added.values["devices"]
    print(f"added in {added.seconds:.1f} s:\n{added.stderr}")
    assert (device["device"], device["examples"]) == (DEVICE, len(dataset.y_train))

    broker = f'url = "{site.url}"\nidentity = "{site.folder}/identity"'
    (site.folder / "run.toml").write_text(config_text(broker=broker, local=0, size=1, rounds=1))
    site.succeed("run", "run.toml", "--run-dir", "run", "--json")
    with Ledger.open(site.folder / "run/ledger.sqlite") as ledger:
        profile = ledger.profiles.all()[DEVICE]
        (update,) = ledger.updates.of_attempt(0, 0)
    assert profile.python.startswith("3.13.")
    assert (update.report.runtime, update.report.torch_loaded) == ("onnxruntime", False)
    assert update.report.steps == -(-update.report.num_examples // 16)
    assert 0.0 < update.report.loss < 2.5

    packages = host.run(f"{PYTHON} -c 'import edge, numpy, onnxruntime; print(numpy.__file__, onnxruntime.__file__)'")
    assert packages.count(f"/.apportion/{DEVICE}/environment") == 2
    site.succeed("device", "revoke", DEVICE, "--key", str(host.keys.client), "--json")
    assert [path.name for path in host.home.iterdir()] == ["data"]
