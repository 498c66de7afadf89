"""``apportion plan CONFIG``: which cut each local device would get, and why, without starting anything for real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.configuration import RunConfig
from coordinator.configuration_planning import LocalGroup
from coordinator.planner import MB, Placement
from edge.contracts.errors import ConfigError, PlanError

EXAMPLE = "Example: apportion plan examples/digits.toml --explain"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan", epilog=EXAMPLE)(plan)


@verb("plan")
def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the run file (TOML)")],
    explain: Annotated[bool, typer.Option("--explain", help="show every level that was tried")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Place the devices of [[cohort.local]] on the largest cuts that fit their budgets."""
    from coordinator.cli.placing import place_groups
    from coordinator.configuration_file import load_config

    settings = load_config(config)
    if not settings.cohort.local:
        raise ConfigError(["$.cohort.local: no devices to plan for; add [[cohort.local]] with count and budget-mb"])
    rows = []
    for group, placement in place_groups(settings):
        rows.append(_row(settings, group, placement))
        if not as_json:
            _print(group.count, placement, explain)
    unplaced = [row["error"] for row in rows if row["level"] is None]
    values: dict[str, Any] = {"ok": not unplaced, "groups": rows}
    if unplaced:
        hint = "raise the budgets or add a smaller level to the method"
        values["error"] = {"code": PlanError.code, "message": "; ".join(unplaced), "hint": hint}
    return values


def _row(config: RunConfig, group: LocalGroup, placement: Placement | PlanError) -> dict[str, Any]:
    row: dict[str, Any] = {"count": group.count, "budget_mb": group.budget_mb, "level": None}
    row["runtime"] = config.runtime.of_group(group)
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
