"""One command makes a device of a host as it comes, which trains a round and is taken out again."""

from __future__ import annotations

import shutil
from pathlib import Path

from coordinator.data.datasets import load_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.run_file.loading import load_config_text
from profiles.device import DeviceProfile
from tests.arm.federation_site import FEDERATION, Site
from tests.coordinator.fleet.ssh_server import SshServer
from tests.federation.small_run import config_text

DEVICE = "pi-13"
PYTHON = f".apportion/{DEVICE}/environment/bin/python"


def train_a_round(host: SshServer, site: Site, folder: Path, *, wait_s: float) -> DeviceProfile:
    """The profile of ``host`` after a round that it trained; what it left there is gone again.

    Args:
        folder: for files of this call.
        wait_s: how long its first hello may take.
    """
    config = load_config_text(config_text(local=1, size=1))
    dataset = load_dataset("digits", None, config.federation.seed)
    (place,) = local_devices(config, dataset, folder / "shares", None)
    shutil.copytree(place.folder / "data", host.home / "data")

    words = ["device", "add", f"pi@{host.host}", "--port", str(host.port), "--key", str(host.keys.client)]
    words += ["--accept-host-key", host.keys.fingerprint, "--device", DEVICE, "--data", "~/data"]
    words += ["--federation", FEDERATION, "--broker", site.url, "--identity", "identity", "--broker-folder", "broker"]
    added = site.succeed(*words, "--wait-s", str(wait_s), "--json")
    (device,) = added.values["devices"]
    print(f"added in {added.seconds:.1f} s:\n{added.stderr}")
    assert (device["device"], device["examples"]) == (DEVICE, len(dataset.y_train))

    broker = f'url = "{site.url}"\nidentity = "{site.folder}/identity"'
    (site.folder / "run.toml").write_text(config_text(broker=broker, local=0, size=1, rounds=1))
    trained = site.succeed("run", "run.toml", "--run-dir", "run", "--json")
    print(f"a round: {trained.seconds:.1f} s")
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
    return profile
