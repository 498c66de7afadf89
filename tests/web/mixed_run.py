"""Phones and Python agents in one federation, and the same federation of Python agents alone, to compare them.

A phone is given the id and the share of the data that a local agent has in the other run: the same batches then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser

from coordinator.blobs.blob_store import BlobStore
from coordinator.data.datasets import load_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import RecordedUpdate
from coordinator.local_devices.data_folders import device_shares
from coordinator.run_file.loading import load_config
from edge.contracts.tensor_file import read_tensor_file
from tests.web.federation_site import Site, apportion, federation_site
from tests.web.phone import Phone

START = Callable[[Browser, int], Phone]
"""Makes the phone of that number."""


@dataclass(frozen=True)
class MixedRun:
    """A run file for either fleet.

    Attributes:
        body: every table but ``[runtime]``, ``[broker]``, ``[cohort]`` and ``data.devices``, which is written into
            ``[data]``; that table is the last one of ``body``.
        local, phones: agents of each kind in the mixed run.
    """

    body: str
    local: int
    phones: int
    deadline_s: float = 300.0

    @property
    def devices(self) -> int:
        """Of both kinds."""
        return self.local + self.phones

    def text(self, *, local: int) -> str:
        """The run file with ``local`` Python agents on this machine; the others are phones."""
        devices = "" if "\ndevices =" in self.body else f"devices = {self.devices}"
        return f"""{self.body.rstrip()}
{devices}

[cohort]
size = {self.devices}
min-reports = {self.devices}
deadline-s = {self.deadline_s}
join-timeout-s = 120

[runtime]
name = ["onnxruntime", "onnxruntime_web"]

[[cohort.local]]
count = {local}
"""

    def phone_ids(self) -> list[str]:
        """The ids after those of the local agents."""
        return [f"device-{number:02d}" for number in range(self.local, self.devices)]

    def agents_alone(self, folder: Path, timeout_s: float = 240.0) -> dict[str, Any]:
        """The summary of the run without phones."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "run.toml"
        config.write_text(self.text(local=self.devices) + '\n[broker]\nurl = "mosquitto"\n')
        return apportion("run", config, "--run-dir", folder / "run", timeout_s=timeout_s)

    @contextlib.contextmanager
    def with_phones(self, folder: Path, browser: Browser, make: START) -> Iterator[tuple[Site, list[Phone]]]:
        """The mixed run, started; every phone has joined, has its share of the data, and shows its training."""
        with federation_site(folder, self.text(local=self.local), phones=self.phone_ids()) as (site, links):
            shares = self._write_shares(site.config, folder / "phones")
            site.start()
            phones: list[Phone] = []
            try:
                for number, (device, link) in enumerate(links.items()):
                    phones.append(make(browser, number))
                    phones[-1].join(link)
                    path, examples = shares[device]
                    phones[-1].add_file(path, examples=examples)
                    phones[-1].tab("training")
                yield site, phones
            finally:
                for phone in phones:
                    phone.close()

    def _write_shares(self, config_path: Path, folder: Path) -> Mapping[str, tuple[Path, int]]:
        config = load_config(config_path)
        data = load_dataset(
            config.data.source, config.data_path(), config.federation.seed, holdout=config.evaluation.holdout
        )
        folder.mkdir()
        shares = device_shares(config, data, max(self.devices, config.data.devices))
        written: dict[str, tuple[Path, int]] = {}
        for device, number in zip(self.phone_ids(), range(self.local, self.devices), strict=True):
            path, indices = folder / f"{device}.npz", shares[number]
            np.savez(path, x=data.x_train[indices], y=data.y_train[indices])
            written[device] = path, len(indices)
        return written


def final_model(run_dir: Path) -> dict[str, np.ndarray]:
    """The tensors of the last committed round's model."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        last = ledger.rounds.last_committed()
        assert last is not None
        return read_tensor_file(BlobStore(run_dir / "blobs").path(last.model_digest), where="the final model")


def recorded_updates(run_dir: Path) -> list[RecordedUpdate]:
    """Every update that counts."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        return [
            u
            for r in ledger.rounds.all()
            if r.state == "committed"
            for u in ledger.updates.of_attempt(r.round, r.attempt)
        ]


def relative_l2(value: np.ndarray, right: np.ndarray) -> float:
    """|value - right| / |right| in float64."""
    difference = np.linalg.norm(value.astype(np.float64) - right.astype(np.float64))
    return float(difference / max(float(np.linalg.norm(right.astype(np.float64))), 1e-12))
