"""Simulated rounds: those of a run, with devices that torch stands in for and a store that goes when the run ends.

What lasts longer is the checkpoint and the record of each committed round; see :mod:`coordinator.simulation.record`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.canonical import canonical_toml
from coordinator.exporting.cut_exporter import CutExporter
from coordinator.exporting.task_metric import is_lower_better
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Round
from coordinator.planning.artifacts import Artifacts
from coordinator.pruning.masks import density
from coordinator.rounds.best_round import rounds_until_stop
from coordinator.rounds.federation import Federation, RoundStage, Stages
from coordinator.rounds.run import run_rounds as run_left
from coordinator.rounds.stages.checkpoints import Checkpoints
from coordinator.rounds.stages.cluster_models import ClusterModels
from coordinator.rounds.stages.device_scores import DeviceScores
from coordinator.rounds.stages.server_optimizer import OptimizesMean
from coordinator.rounds.stages.tagged_devices import TaggedDevices
from coordinator.simulation.control_variates import SimulatedVariates
from coordinator.simulation.devices import SimulatedDevices
from coordinator.simulation.orders import Simulation
from coordinator.simulation.personal_layers import PersonalLayers
from coordinator.simulation.record import Commits, Record, restored_state
from coordinator.simulation.spool import Spool
from coordinator.submodels.packed_tensors import masks_of
from coordinator.submodels.values import State
from edge.contracts.errors import PlanError


def run_rounds(simulation: Simulation) -> State:
    """Run every round that is not on disk yet, then the statistics round; the final state."""
    config, record = simulation.config, simulation.record
    rounds = rounds_until_stop(record.rounds, config.federation, is_lower=is_lower_better(config))
    state = restored_state(simulation.run_dir, record, rounds=rounds) or simulation.method.init()
    with (
        tempfile.TemporaryDirectory(prefix="apportion-simulate-") as name,
        Commits(simulation.run_dir, record) as commits,
    ):
        folder = Path(name)
        with Ledger.create(
            folder / "ledger.sqlite",
            federation=config.federation.name,
            config=canonical_toml(config),
            seed=config.federation.seed,
            is_durable=False,
        ) as ledger:
            blobs = PassingStore(folder / "blobs")
            devices = SimulatedDevices(simulation, ledger, Spool(folder))
            kept: list[RoundStage] = [OptimizesMean()] if OptimizesMean.is_used(config) else []
            kept += [stage() for stage in (TaggedDevices, ClusterModels) if stage.is_used(config)]
            kept += [SimulatedVariates(devices)] if config.training.scaffold else []
            kept += [PersonalLayers(simulation, devices)] if config.personal.layers else []
            kept += [DeviceScores()] if DeviceScores.is_used(config) else []
            kept += [RecordedCheckpoints(record)] if Checkpoints.is_used(config) else []
            federation = Federation(
                name=config.federation.name,
                config=config,
                method=simulation.method,
                artifacts=Artifacts(CutExporter(config), ledger, blobs),
                ledger=ledger,
                blobs=blobs,
                devices=devices,
                progress=simulation.progress,
                evaluate=simulation.evaluate,
                stages=Stages([SimulationRecord(simulation, devices, commits), *kept, *simulation.watchers]),
                checkpoints=simulation.run_dir / "checkpoints",
            )
            return run_left(federation, state)


class PassingStore(BlobStore):
    """Gives digests and keeps nothing: what a simulation keeps is in its record."""

    def put(self, data: bytes | memoryview) -> str:
        """As :meth:`BlobStore.put`, but for the disk."""
        return hashlib.sha256(data).hexdigest()

    def delete(self, digest: str) -> None:
        """As :meth:`BlobStore.delete`: there is nothing to delete."""


class RecordedCheckpoints(Checkpoints):
    """Those of a simulation, whose ledger knows the rounds since it was begun or went on."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def history(self, federation: Federation) -> Sequence[Mapping[str, Any]]:
        """As :meth:`Checkpoints.history`."""
        return self._record.rounds


class SimulationRecord(RoundStage):
    """What a simulation says of its rounds, and has on disk after each."""

    def __init__(self, simulation: Simulation, devices: SimulatedDevices, commits: Commits) -> None:
        self._simulation = simulation
        self._devices = devices
        self._commits = commits

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        """All that reported.

        Raises:
            PlanError: too few; another attempt would end the same. The message holds the first reasons.
        """
        needed, tally = federation.config.cohort.min_reports, self._devices.tally
        if len(reported) < needed:
            ordered = len(reported) + len(tally.refused)
            raise PlanError(
                f"round {current.round + 1}: {len(reported)} of {ordered} devices reported, "
                f"cohort.min-reports is {needed}: " + "; ".join(tally.refused[:3])
            )
        return reported

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """The simulated seconds, and which levels trained."""
        tally = self._devices.tally
        found: dict[str, Any] = {
            "simulated_s": tally.simulated_s,
            "refused": len(tally.refused),
            "levels": dict(sorted(tally.levels.items())),
        }
        if masks := masks_of(state.extra):
            found["density"] = density(masks)
        return found

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """Put the state on disk while the next round begins, and what the rounds so far came to."""
        record = self._simulation.record
        record.rounds.append(dict(entry))
        record.wall_s += entry["wall_s"]
        record.done += 1
        self._commits.put(state)
