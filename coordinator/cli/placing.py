"""Placement of local groups without agents: idle sizes measured here, artifacts exported into a folder thrown away."""

from __future__ import annotations

import tempfile
from pathlib import Path

from coordinator.artifacts import Artifact, Artifacts
from coordinator.blob_store import BlobStore
from coordinator.cli.exporting import CutExporter, dense_module
from coordinator.configuration import LocalGroup, RunConfig, canonical_toml
from coordinator.ledger import Ledger
from coordinator.methods import build_method
from coordinator.methods.method import Level
from coordinator.planner import MB, Placement, place
from edge.contracts.errors import PlanError
from edge.idle_size import measure_idle_sizes
from profiles.device import DeviceProfile


def place_groups(config: RunConfig) -> list[tuple[LocalGroup, Placement | PlanError]]:
    """Each local group with its placement, or the reason there is none. Exports what it has to look at."""
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    supervisor, trainer = measure_idle_sizes(config.runtime.name)
    placements: list[tuple[LocalGroup, Placement | PlanError]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with Ledger.create(root / "ledger.sqlite", federation="plan", config=canonical_toml(config), seed=0) as ledger:
            artifacts = Artifacts(CutExporter(config), ledger, BlobStore(root / "blobs"))

            def artifact_of(level: Level) -> Artifact:
                cut = method.cut_shape(level, round_index=0, device="", seed=config.federation.seed)
                return artifacts.get(cut, method.program(cut), config.runtime.name)

            for number, group in enumerate(config.cohort.local):
                profile = DeviceProfile(
                    device=f"cohort.local[{number}]",
                    budget_bytes=round(group.budget_mb * MB),
                    supervisor_idle_bytes=supervisor,
                    trainer_idle_bytes={config.runtime.name: trainer},
                )
                try:
                    placement: Placement | PlanError = place(
                        profile,
                        config.runtime.name,
                        method.levels(),
                        lambda level: artifact_of(level).manifest.cost,
                        headroom=config.planner.headroom,
                    )
                except PlanError as error:
                    placement = error
                placements.append((group, placement))
    return placements
