"""A run's past and present from its ledger alone, read in pieces, beside the coordinator that may still write it.

One object for each who looks. It keeps what can no longer change (sums over rounds that are over) and reads only the
rest anew. What the ledger does not have, ``summary.json`` and manifests, is read from the run's directory where it is.
"""

from __future__ import annotations

import json
import threading
import tomllib
from pathlib import Path
from typing import Any

from coordinator.blobs.blob_store import BlobStore
from coordinator.history.assignments import assignments_of_device, assignments_of_round
from coordinator.history.devices import DeviceReader
from coordinator.history.events import events, last_event
from coordinator.history.model_map import ModelReader
from coordinator.history.records import (
    AssignmentRecord,
    DeviceRecord,
    LayerDevice,
    LedgerEvent,
    ModelMap,
    Presence,
    RoundRecord,
    Run,
    TrafficTotal,
)
from coordinator.history.rounds import rounds
from coordinator.history.traffic import traffic
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.read_only import OlderLedger, ReadOnlyLedger
from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.manifest import ArtifactManifest
from profiles.device import DeviceProfile

PAGE = 5000
"""Rows of one answer unless fewer are asked for."""


class History:
    """What there is to know of one run. Any thread may ask; one at a time where sums are kept.

    Args:
        where: an SQLite file, or a ``postgresql://`` address.
        federation: the run's name; needed with an address.
        folder: the run's directory, for what the ledger does not have; None: nothing of it is read.

    Raises:
        LedgerError: there is no ledger, or it cannot be read.
    """

    def __init__(self, where: Path | str, federation: str = "", *, folder: Path | None = None) -> None:
        try:
            self._ledger = ReadOnlyLedger(where, federation)
        except OlderLedger:
            Ledger.open(where, federation=federation).close()  # brings it to this release's tables
            self._ledger = ReadOnlyLedger(where, federation)
        self._where, self._federation = where, federation
        self.folder = folder
        self._lock = threading.Lock()
        self._devices = DeviceReader(self._ledger, self._manifest)
        self._model = ModelReader(self._ledger)
        self._store = self._blobs()

    @classmethod
    def of(cls, run_dir: Path) -> History:
        """That of the run in ``run_dir``, whose ledger is a file there or at the address that ``config.toml`` has.

        Raises:
            ConfigError: no run is there; LedgerError: its ledger cannot be read.
        """
        file, written = run_dir / "ledger.sqlite", run_dir / "config.toml"
        if file.is_file():
            return cls(file, folder=run_dir)
        if written.is_file():
            config = tomllib.loads(written.read_text())
            if address := config.get("store", {}).get("ledger", ""):
                return cls(address, config["federation"]["name"], folder=run_dir)
        raise ConfigError(
            [f"RUN_DIR: {run_dir} holds no run (no ledger.sqlite in it)"],
            hint="give the directory of a run; begin one with: apportion run CONFIG",
        )

    def close(self) -> None:
        """Closes the connections."""
        self._ledger.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_ledger(self) -> Ledger:
        """The same ledger for writing, a new connection."""
        return Ledger.open(self._where, federation=self._federation)

    def marker(self) -> object:
        """Another value whenever something may have been written since it was asked last."""
        return self._ledger.marker()

    def first_unsettled_round(self) -> int:
        """Nothing changes any more in the rounds before it, but for what an operator sets aside or releases."""
        return self._devices.first_unsettled_round()

    def run(self) -> Run:
        """The run as a whole, as it is now."""
        name, config, seed, created_at, state = self._ledger.one(
            "SELECT id, config, seed, created_at, state FROM federation"
        )
        attempts, committed = self._ledger.one(
            "SELECT COUNT(*), SUM(CASE WHEN state = 'committed' THEN 1 ELSE 0 END) FROM rounds"
        )
        ended = self._ledger.one("SELECT MAX(at_ms) FROM audit_log WHERE action = 'run-ended'")[0]
        request = self._ledger.one("SELECT value FROM wishes WHERE name = 'control'")
        asked = _read_toml(config)
        return Run(
            name=name,
            method=str(asked.get("method", {}).get("name", "")),
            model=str(asked.get("model", {}).get("build", "")),
            state=state,
            seed=seed,
            rounds_asked=int(asked.get("federation", {}).get("rounds", 0)),
            rounds_committed=int(committed or 0),
            attempts=int(attempts),
            devices=int(self._ledger.one("SELECT COUNT(*) FROM profiles")[0]),
            cohort_size=int(asked.get("cohort", {}).get("size", 0)),
            started_at=created_at,
            ended_at=None if ended is None else ended / 1000,
            request="" if request is None else request[0],
            config=config,
            summary=self._summary() if state == "finished" else {},
            last_event=last_event(self._ledger),
        )

    def rounds(self, since: int = 0, *, limit: int = PAGE) -> tuple[RoundRecord, ...]:
        """Attempts at round ``since`` and later ones, in order, ``limit`` of them at most."""
        return rounds(self._ledger, since, limit)

    def devices(self, after: str = "", *, limit: int = PAGE) -> tuple[DeviceRecord, ...]:
        """Devices of the run's snapshot by id: those behind ``after``, ``limit`` of them at most."""
        with self._lock:
            return self._devices.page(after, limit)

    def device(self, device: str) -> DeviceRecord | None:
        """One device; None: it never was in the snapshot."""
        with self._lock:
            return self._devices.one(device)

    def profile(self, device: str) -> DeviceProfile | None:
        """The profile that plans are made from; None: there is none of that device."""
        return self._devices.profile(device)

    def presences(self) -> tuple[Presence, ...]:
        """Devices as several coordinators last heard them; empty where one coordinator runs alone."""
        return self._devices.presences()

    def assignments_of_round(
        self, round_index: int, attempt: int, *, after: str = "", limit: int = PAGE
    ) -> tuple[AssignmentRecord, ...]:
        """The work of an attempt, by device; those behind ``after``."""
        return assignments_of_round(self._ledger, round_index, attempt, after, limit)

    def assignments_of_device(
        self, device: str, *, before_round: int | None = None, limit: int = PAGE
    ) -> tuple[AssignmentRecord, ...]:
        """The work of a device, the newest first; of rounds before ``before_round`` where one is given."""
        return assignments_of_device(self._ledger, device, before_round, limit)

    def model(self, *, budget_s: float = float("inf")) -> ModelMap:
        """The model as a map of what committed rounds trained.

        Args:
            budget_s: time to read further rounds in; a map that is not complete goes on where it was.
        """
        with self._lock:
            return self._model.read(budget_s)

    def layer_devices(self, path: str) -> tuple[LayerDevice, ...]:
        """Who trained a layer, by id, as far as :meth:`model` was read."""
        with self._lock:
            return self._model.devices_of(path)

    def events(self, since: int = 0, *, device: str = "", limit: int = PAGE) -> tuple[LedgerEvent, ...]:
        """Entries of the audit log behind number ``since``, in order; those about or by ``device`` where one is
        given."""
        return events(self._ledger, since, device, limit)

    def latest_events(self, limit: int) -> tuple[LedgerEvent, ...]:
        """The newest ``limit`` entries of the audit log, in order."""
        return events(self._ledger, max(0, last_event(self._ledger) - limit), "", limit)

    def traffic(self, device: str = "") -> tuple[TrafficTotal, ...]:
        """Bytes by direction and scheme, of all devices or of one."""
        return traffic(self._ledger, device)

    def _summary(self) -> dict[str, Any]:
        file = None if self.folder is None else self.folder / "summary.json"
        if file is None or not file.is_file():
            return {}
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def _blobs(self) -> BlobStore | None:
        config = _read_toml(self._ledger.one("SELECT config FROM federation")[0]).get("store", {})
        folder = Path(config["dir"]) if config.get("dir") else None if self.folder is None else self.folder / "blobs"
        return BlobStore(folder, tidy=False) if folder is not None and folder.is_dir() else None

    def _manifest(self, digest: str) -> ArtifactManifest | None:
        """That of an artifact, where the run's blobs are on this machine."""
        path = None if self._store is None else self._store.path(digest)
        if path is None or not path.is_file():
            return None
        try:
            return ArtifactManifest.from_bytes(path.read_bytes())
        except (ApportionError, ValueError):  # damaged; whoever needs it will say so
            return None


def _read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # of an older release, or by hand
        return {}
