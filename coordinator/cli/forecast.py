"""``apportion forecast FLEET``: what a fleet of any size would take, before it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb

EXAMPLE = "Example: apportion forecast examples/fleets/million.toml --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("forecast", epilog=EXAMPLE)(forecast)


@verb("forecast")
def forecast(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="the file of the fleet (TOML)")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Reckon rounds, bytes, machines and money of a large fleet from measured figures; nothing is started."""
    from coordinator.forecast.fleet_file import read_fleet
    from coordinator.forecast.simulate import simulate_fleet
    from coordinator.forecast.totals import totals

    settings = read_fleet(fleet)
    values = totals(settings, simulate_fleet(settings))
    if not as_json:
        for line in lines(values):
            print(line)
    return values


def lines(values: dict[str, Any]) -> list[str]:
    """The figures for people."""
    money = values["money"]
    told = [
        f"{values['hours']:,.1f} hours; a round takes {values['round_s_median']:,.0f} s, one of ten more than "
        f"{values['round_s_p90']:,.0f} s",
        f"{values['online_least']:,} to {values['online_most']:,} devices are there at a time",
        f"{values['asked']:,} orders, {values['reported']:,} reports count ({values['lost_share']:.1%} lost or late)",
        f"{values['gb_down_wire']:,.1f} GB to devices, {values['gb_up_wire']:,.1f} GB from them",
        f"{values['coordinators']} coordinators of {values['coordinator_mb']:,} MB, "
        f"{values['coordinator_busy_share']:.1%} busy, {values['coordinator_cpu_hours']:,.1f} hours of processor",
        f"{values['brokers']} brokers of {values['broker_mb']:,} MB, "
        f"{values['broker_cpu_hours']:,.1f} hours of processor",
        f"money: {money['all']:,.2f} (egress {money['egress']:,.2f}, cores {money['cores']:,.2f}, "
        f"memory {money['memory']:,.2f})",
        "",
        f"{'group':24}{'fleet':>8}{'reports':>9}{'lost':>8}{'rounds':>9}{'MB down':>9}{'training s':>12}",
    ]
    for row in values["groups"]:
        told.append(
            f"{row['name'][:23]:24}{row['share']:8.1%}{row['share_of_reports']:9.1%}{row['lost_share']:8.1%}"
            f"{row['rounds_per_device']:9.2f}{row['mb_down_per_device']:9.2f}{row['training_s_per_device']:12.1f}"
        )
    return told
