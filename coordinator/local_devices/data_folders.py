"""The devices started on this machine: their budgets, and each one's share of the run's dataset in its own folder.

The share is written once; a resumed run finds it there. Real devices bring their own data and never come here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset
from coordinator.data.partition import partition, partition_labels
from coordinator.local_devices.control_groups import Limits
from coordinator.local_devices.processes import LocalDevice
from coordinator.planning.planner import MB
from edge.contracts.errors import ConfigError
from edge.runtimes.environments import runtime_python
from edge.training.records import entry, names_of

if TYPE_CHECKING:
    import numpy as np


def local_devices(config: RunConfig, dataset: Dataset, run_dir: Path, count: int | None) -> list[LocalDevice]:
    """The agents to start, with their data in place; none when ``count`` is 0.

    Args:
        count: how many; None means all of ``[[cohort.local]]``. More than those have the last group's settings.

    Raises:
        ConfigError: devices are asked for and the configuration has no local group, or an environment that it names
            holds no interpreter.
    """
    groups = config.cohort.local
    planned = [group for group in groups for _ in range(group.count)]
    wanted = len(planned) if count is None else count
    if wanted and not planned:
        raise ConfigError(["$.cohort.local: no group of local devices; add [[cohort.local]] with count and budget-mb"])
    planned = (planned + planned[-1:] * wanted)[:wanted]
    runtimes = sorted({config.runtime.of_group(group) for group in planned})
    pythons = {name: runtime_python(name, config.runtime.environments.get(name, "")) for name in runtimes}
    devices = [
        LocalDevice(
            f"device-{i:02d}",
            run_dir / "devices" / f"device-{i:02d}",
            round(group.budget_mb * MB),
            group.threads,
            config.runtime.of_group(group),
            pythons[config.runtime.of_group(group)],
            Limits(round(group.budget_mb * MB) if group.ceiling == "budget" else 0, group.cpu_share),
            group.tags,
        )
        for i, group in enumerate(planned)
    ]
    missing = [d for d in devices if not (d.folder / "data" / "data.npz").exists()]
    if missing:
        shares = device_shares(config, dataset, max(len(devices), config.data.devices))
        for device, indices in zip(devices, shares, strict=False):
            _write_share(device.folder / "data", dataset, indices)
    return devices


def device_shares(config: RunConfig, dataset: Dataset, devices: int) -> list[np.ndarray]:
    """Indices of the training examples of each device, as ``[data]`` partitions them."""
    return partition(
        config.data.partition,
        partition_labels(config.data.partition, dataset.y_train),
        devices,
        seed=config.federation.seed,
        alpha=config.data.alpha,
        owners=dataset.owner_train,
    )


def _write_share(folder: Path, dataset: Dataset, indices: np.ndarray) -> None:
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "incoming.tmp"
    with temporary.open("wb") as file:
        y = dataset.y_train[indices]
        arrays: dict[str, Any] = {name: entry(y, name) for name in names_of(y)}
        np.savez(file, x=dataset.x_train[indices], **arrays)
    temporary.replace(folder / "data.npz")
