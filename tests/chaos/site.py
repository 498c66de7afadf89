"""Where one seed's run lives: its folder, its run file, its disks, and the data of its devices.

The model is a small MLP on digits, trained by the real runtime; two blocks each way, so that transfers can be cut.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.ledger.ledger import Ledger
from edge.contracts.errors import LedgerError
from tests.chaos.disks import Disk
from tests.chaos.schedule import DEVICES, LEASE_S, MIN_REPORTS, ROUNDS, Mode

NAME = "chaos"
PASSWORD_VARIABLE = "APPORTION_BROKER_PASSWORD"
RUN_DISK_BYTES = 48 << 20
DEVICE_DISK_BYTES = 64 << 20
"""An agent waits while less than twice its reserve of 16 MB is free."""
DEADLINE_S = 25
COORDINATOR_LOG = "coordinator*.log"
SCREENING = 50
"""Medians; honest devices with few examples move a fifth as far as others, a crafted update a thousand times."""


def device_names() -> list[str]:
    """``device-00`` and on."""
    return [f"device-{index:02d}" for index in range(DEVICES)]


def config_text(
    work: Path,
    mode: Mode,
    *,
    port: int,
    user: str,
    deadline_s: float = DEADLINE_S,
    liars: int = 0,
    store: str = "",
) -> str:
    """The run file of a coordinator that reaches its broker at ``port`` of this machine.

    With ``liars`` of them the cohort has that many more devices and needs no more reports. Who was rejected once sits
    out the rest of the run; who said bye is not waited for. ``store`` is what stands in ``[store]``.
    """
    aggregation = '\n[aggregation]\nmode = "buffered"\n' if mode == "buffered" else ""
    return f"""
[federation]
name = "{NAME}"
seed = 11
rounds = {ROUNDS[mode]}

[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [192, 192] }}

[method]
name = "fedavg"

[training]
epochs = 1
batch = 16
last-batch = "keep"
lr = 0.05
momentum = 0.9

[data]
source = "digits"
partition = "dirichlet"
alpha = 0.5
scale = 0.0625
devices = {DEVICES}

[evaluation]
every = 0

[cohort]
size = {DEVICES + liars}
min-reports = {MIN_REPORTS[mode]}
deadline-s = {deadline_s}
leave-after-s = {1.0 if liars else 0.0}
join-timeout-s = {deadline_s}

[planner]
export-cache = "{work / "exports"}"

[runtime]
name = "onnxruntime"

[broker]
url = "mqtt://127.0.0.1:{port}"
user = "{user}"
password-env = "{PASSWORD_VARIABLE}"
{aggregation}{_defences(mode) if liars else ""}{store}"""


def _defences(mode: Mode) -> str:
    factor = "" if mode == "buffered" else f"quarantine-factor = {SCREENING}\n"
    return f"\n[defences]\nbar-after = 1\nbar-rounds = 100\n{factor}"


def write_data(work: Path) -> None:
    """Each device's examples, once for all seeds."""
    import numpy as np

    from coordinator.data.datasets import load_dataset
    from coordinator.local_devices.data_folders import device_shares
    from coordinator.run_file.loading import load_config_text

    config = load_config_text(config_text(work, "synchronous", port=1, user="nobody"))
    dataset = load_dataset("digits", None, config.federation.seed)
    for device, indices in zip(device_names(), device_shares(config, dataset, DEVICES), strict=True):
        folder = work / "data" / device
        folder.mkdir(parents=True)
        np.savez(folder / "data.npz", x=dataset.x_train[indices], y=dataset.y_train[indices])


class Site:
    """The folders of a seed below ``folder``; disks are mounted when ``has_disks``."""

    def __init__(self, work: Path, folder: Path, *, has_disks: bool) -> None:
        self.work, self.folder = work, folder
        self.run_dir = folder / "run"
        self.second_dir = folder / "second"
        self.ledger: Path | str = self.run_dir / "ledger.sqlite"
        self.blobs = self.run_dir / "blobs"
        self.broker = folder / "broker"
        self.aside = folder / "aside"
        self.logs = folder / "logs"
        self.signing = folder / "signing"
        for made in (self.run_dir, self.broker, self.aside, self.logs):
            made.mkdir(parents=True)
        self.disks = {"coordinator": Disk(self.run_dir, RUN_DISK_BYTES)}
        for device in device_names():
            self.disks[device] = Disk(folder / "stores" / device, DEVICE_DISK_BYTES)
        for disk in self.disks.values():
            if has_disks:
                disk.mount()
            else:
                disk.folder.mkdir(parents=True, exist_ok=True)

    def on_server(self, address: str) -> str:
        """Have the ledger at ``address`` and the blobs where two coordinators reach them; ``[store]`` of that."""
        self.ledger, self.blobs = address, self.run_dir / "shared"
        return f'\n[store]\nledger = "{address}"\ndir = "{self.blobs}"\nlease-s = {LEASE_S}\n'

    def has_run(self) -> bool:
        """Whether there is a ledger; False also while its server is away."""
        try:
            return Ledger.exists(self.ledger, federation=NAME)
        except LedgerError:
            return False

    def open_ledger(self) -> Ledger:
        """The run's, wherever it is."""
        return Ledger.open(self.ledger, federation=NAME)

    def data(self, device: str) -> Path:
        """The device's examples."""
        return self.work / "data" / device

    def make_signing_key(self) -> None:
        """A key that the coordinator signs orders with, and the devices' copy of its public half."""
        from coordinator.identity.folder import IdentityFolder
        from coordinator.identity.signing import SigningKey

        self.signing.mkdir()
        SigningKey.create(IdentityFolder(self.signing))

    @property
    def trust(self) -> Path:
        """What devices follow where orders are signed."""
        from coordinator.identity.folder import IdentityFolder

        return IdentityFolder(self.signing).signing_public

    def log(self, party: str) -> Path:
        """What a party wrote to stdout and stderr."""
        return self.logs / f"{party}.log"
