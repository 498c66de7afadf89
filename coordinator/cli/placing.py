"""Placement of local groups without agents: idle sizes measured here, artifacts exported into a folder thrown away."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path

from coordinator.artifacts import Artifacts
from coordinator.blob_store import BlobStore
from coordinator.cli.exporting import CutExporter, dense_module
from coordinator.configuration import RunConfig, canonical_toml
from coordinator.configuration_planning import LocalGroup
from coordinator.distillation.proxy import require_proxy
from coordinator.ledger import Ledger
from coordinator.methods import build_method
from coordinator.methods.method import Level
from coordinator.planner import MB, Placement, place, require_able
from coordinator.simulation.capacity import group_level
from edge.contracts.errors import ConfigError, DeviceRefused, ExportRefused, ParityError, PlanError
from edge.contracts.manifest import Cost
from edge.idle_size import measure_idle_sizes
from edge.runtimes.environments import runtime_python
from profiles.device import DeviceProfile


def place_groups(config: RunConfig) -> list[tuple[LocalGroup, Placement | PlanError]]:
    """Each local group with its placement, or the reason there is none. Exports what it has to look at.

    Raises:
        ApportionError: the run's only runtime cannot be started here or cannot train the model; where there are
            several, that is the reason for its groups.
    """
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    require_proxy(method)
    allowed = config.runtime
    placements: list[tuple[LocalGroup, Placement | PlanError]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with Ledger.create(root / "ledger.sqlite", federation="plan", config=canonical_toml(config), seed=0) as ledger:
            artifacts = Artifacts(CutExporter(config), ledger, BlobStore(root / "blobs"))

            def cost_of(runtime: str, level: Level) -> Cost:
                cut = method.cut_shape(level, round_index=0, device="", seed=config.federation.seed)
                return artifacts.get(cut, method.program(cut), runtime).manifest.cost

            @cache
            def idle_sizes(runtime: str) -> tuple[int, int]:
                python = runtime_python(runtime, allowed.environments.get(runtime, ""))
                return measure_idle_sizes(runtime, python=str(python))

            for number, group in enumerate(config.cohort.local):
                name = allowed.of_group(group)
                given = group_level(config, number, method.levels())
                try:
                    require_able(method, name, artifacts.unable, seed=config.federation.seed)
                    supervisor, trainer = idle_sizes(name)
                    profile = DeviceProfile(
                        device=f"cohort.local[{number}]",
                        budget_bytes=round(group.budget_mb * MB),
                        supervisor_idle_bytes=supervisor,
                        trainer_idle_bytes={name: trainer},
                    )
                    placement: Placement | PlanError = place(
                        profile,
                        name,
                        method.levels() if given is None else (given,),
                        partial(cost_of, name),
                        headroom=config.planner.headroom,
                    )
                except PlanError as error:
                    placement = error
                except (ConfigError, DeviceRefused, ExportRefused, ParityError) as error:
                    if len(allowed.names) == 1:
                        raise
                    placement = PlanError(f"cohort.local[{number}]: cannot train on its runtime '{name}': {error}")
                placements.append((group, placement))
    return placements
