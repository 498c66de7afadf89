"""``apportion plan CONFIG``: which cut each local device would get, and why, without starting anything for real."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.artifacts import Artifact, Artifacts
from coordinator.blob_store import BlobStore
from coordinator.cli.command import verb
from coordinator.cli.exporting import CutExporter, dense_module
from coordinator.configuration import RunConfig, canonical_toml
from coordinator.configuration_file import load_config
from coordinator.ledger import Ledger
from coordinator.methods import build_method
from coordinator.methods.method import Level
from coordinator.planner import MB, Placement, place
from edge.contracts.errors import ConfigError, PlanError
from profiles.device import DeviceProfile

EXAMPLE = "Example: apportion plan examples/digits.toml --explain"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan", epilog=EXAMPLE)(plan)


@verb("plan")
def plan(
    config: Annotated[Path, typer.Argument(help="the run file (TOML)")],
    explain: Annotated[bool, typer.Option("--explain", help="show every level that was tried")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Place the devices of [[cohort.local]] on the largest cuts that fit their budgets."""
    settings = load_config(config)
    if not settings.cohort.local:
        raise ConfigError(["$.cohort.local: no devices to plan for; add [[cohort.local]] with count and budget-mb"])
    rows = []
    for group, placement in place_groups(settings):
        rows.append(_row(group.count, group.budget_mb, placement))
        if not as_json:
            _print(group.count, placement, explain)
    return {"ok": all(row["level"] is not None for row in rows), "groups": rows}


def place_groups(config: RunConfig) -> list[tuple[Any, Placement | PlanError]]:
    """Each local group with its placement, or the reason there is none. Exports what it has to look at."""
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    supervisor, trainer = measure_idle(config.runtime.name)
    placements: list[tuple[Any, Placement | PlanError]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with Ledger.create(root / "ledger.sqlite", federation="plan", config=canonical_toml(config), seed=0) as ledger:
            artifacts = Artifacts(CutExporter(config), ledger, BlobStore(root / "blobs"))

            def artifact_of(level: Level) -> Artifact:
                cut = method.cut_shape(level, round_index=0, device="", seed=config.federation.seed)
                return artifacts.get(cut, method.program(cut), config.runtime.name)

            for number, group in enumerate(config.cohort.local):
                profile = DeviceProfile(
                    device=f"group-{number}",
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


def measure_idle(runtime: str) -> tuple[int, int]:
    """RSS in bytes of an idle supervisor and of an idle trainer with ``runtime``, measured here in child processes."""
    from edge.idle_size import measure_idle_sizes

    return measure_idle_sizes(runtime)


def _row(count: int, budget_mb: float, placement: Placement | PlanError) -> dict[str, Any]:
    row: dict[str, Any] = {"count": count, "budget_mb": budget_mb, "level": None}
    if isinstance(placement, PlanError):
        return {**row, "error": str(placement)}
    chosen = placement.chosen
    return {
        **row,
        "level": placement.level.name,
        "predicted_peak_bytes": chosen.peak_bytes,
        "idle_bytes": chosen.idle_bytes,
        "tried": [{"level": p.level.name, "predicted_peak_bytes": p.peak_bytes} for p in placement.tried],
    }


def _print(count: int, placement: Placement | PlanError, explain: bool) -> None:
    if isinstance(placement, PlanError):
        print(f"{count} devices: {placement}")
        return
    budget = f"{placement.budget_bytes / MB:.0f} MB" if placement.budget_bytes else "no limit"
    print(f"{count} devices of {budget}: {placement.chosen.describe()}")
    if explain:
        for prediction in placement.tried:
            print(f"    too large: {prediction.describe()}")
