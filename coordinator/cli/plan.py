"""``apportion plan CONFIG``: which cut each device would get, and why, without starting anything for real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.waiting import waiting
from edge.contracts.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from coordinator.cli.placing import Placed
    from coordinator.config.run_config import RunConfig

EXAMPLE = "Example: apportion plan examples/digits.toml --device pi-zero-2w --device pi-4-2gb --explain"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan", epilog=EXAMPLE)(plan)


@verb("plan")
def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the run file (TOML)")],
    explain: Annotated[bool, typer.Option("--explain", help="show every step that was tried, and its parts")] = False,
    device: Annotated[
        list[str] | None,
        typer.Option(help="plan for this device of the catalog, or of --profiles, instead of the run's local ones"),
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(help="folder of stored profiles (apportion profile --store DIR)")
    ] = None,
    budget_mb: Annotated[
        float, typer.Option(min=0, help="what the agent on each --device may use; 0: all of its memory")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Place devices on the largest cuts that fit them: those of [[cohort.local]], or the ones named."""
    from coordinator.run_file.loading import load_config

    rows = []
    with waiting(f"placing the devices of {config}: each cut is exported once"):
        placed = planned(load_config(config), device or (), profiles, budget_mb)
    for name, found, row in placed:
        rows.append(row)
        if not as_json:
            _print(name, found, explain)
    unplaced = [row["error"] for row in rows if row["level"] is None]
    values: dict[str, Any] = {"ok": not unplaced, "groups": rows}
    if unplaced:
        hint = "raise the budgets or add a smaller level to the method"
        values["error"] = {"code": PlanError.code, "message": "; ".join(unplaced), "hint": hint}
    return values


def planned(
    settings: RunConfig, devices: Sequence[str] = (), profiles: Path | None = None, budget_mb: float = 0.0
) -> list[tuple[str, Placed, dict[str, Any]]]:
    """The name, the placement and the row of every device: of the run's local groups, or of those named.

    Args:
        devices: names of the catalog, or of the folder ``profiles``, all of whose devices are meant when none is named.
        budget_mb: what an agent on each of them may use; 0: all of its memory.

    Raises:
        ConfigError: there is no device to plan for, or an unknown one. Also as :func:`place_groups`.
    """
    from coordinator.cli.placing import place_devices, place_groups

    placed: list[tuple[dict[str, Any], str, Placed]] = []
    if devices or profiles:
        for found in place_devices(settings, _names(devices, profiles), profiles, budget_mb):
            placed.append(({"device": found.profile.device}, found.profile.device, found))
    elif settings.cohort.local:
        for group, found in place_groups(settings):
            row = {"count": group.count, "budget_mb": group.budget_mb, "runtime": settings.runtime.of_group(group)}
            placed.append((row, f"{group.count} devices", found))
    else:
        problem = (
            "$.cohort.local: no devices to plan for; add [[cohort.local]] with count and budget-mb, or give --device"
        )
        raise ConfigError([problem])
    return [(name, found, {**head, **_row(found)}) for head, name, found in placed]


def _names(device: Sequence[str], profiles: Path | None) -> list[str]:
    """The devices asked for, else all of the folder."""
    from profiles.stored_profile import ProfileUnusable, read_profiles

    if device or profiles is None:
        return list(device)
    try:
        names = list(read_profiles(profiles))
    except ProfileUnusable as error:
        raise ConfigError([f"--profiles: {error}"]) from error
    if not names:
        raise ConfigError([f"--profiles: {profiles} holds no profile; store one with apportion profile --store DIR"])
    return names


def _row(found: Placed) -> dict[str, Any]:
    from coordinator.planning.planner import NothingFits
    from coordinator.planning.trial import prediction_values

    profile, placement = found.profile, found.placement
    row: dict[str, Any] = {"level": None, "ceiling_bytes": profile.ceiling_bytes}
    if isinstance(placement, PlanError):
        tried = placement.tried if isinstance(placement, NothingFits) else ()
        return {**row, "error": str(placement), "tried": [trial.to_json() for trial in tried]}
    chosen = placement.chosen
    return {
        **row,
        "level": placement.level.name,
        "runtime": placement.runtime,
        "form": placement.form.name,
        **prediction_values(chosen),
        "idle_bytes": chosen.idle_bytes,
        "idle_source": profile.sources.get("trainer_idle_bytes", "measured on the device"),
        "tried": [trial.to_json() for trial in placement.tried],
    }


def _print(name: str, found: Placed, explain: bool) -> None:
    from coordinator.planning.explanation import explanation, headline

    print(headline(name, found.profile, found.placement))
    if explain:
        for line in explanation(found.profile, found.title, found.placement):
            print(f"    {line}")
