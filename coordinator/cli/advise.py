"""``apportion advise CONFIG``: which method and level to run, by what was recorded and what the run's model costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb

EXAMPLE = "Example: apportion advise examples/digits.toml --budget-mb 128 --link-mb-s 1 --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("advise", epilog=EXAMPLE)(advise)


@verb("advise")
def advise(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the run file (TOML)")],
    target: Annotated[
        float | None, typer.Option(help="accuracy to reach; unset: 0.95 of the best recorded in the nearest setting")
    ] = None,
    by: Annotated[str, typer.Option(help="what should be least: time, bytes or cpu")] = "time",
    budget_mb: Annotated[
        float | None, typer.Option(min=1, help="memory of the smallest device, MB; unset: the least of the groups")
    ] = None,
    link_mb_s: Annotated[
        float | None, typer.Option(min=1e-6, help="link of the slowest device, MB/s; unset: [simulation]'s")
    ] = None,
    map_file: Annotated[Path | None, typer.Option("--map", help="another map than the package's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Say which method and level should reach an accuracy first on a run's devices; nothing is trained."""
    from coordinator.advice import words
    from coordinator.advice.features import population
    from coordinator.advice.ranking import BY
    from coordinator.advice.ranking import advise as ranked
    from coordinator.advice.recorded import PACKAGED, read_map
    from coordinator.cli.waiting import waiting
    from coordinator.run_file.loading import load_config
    from coordinator.simulation.device_speed import device_speed

    if by not in BY:
        raise parse_problem("--by", f"'{by}' is not known; use {', '.join(BY)}")
    settings = load_config(config)
    found = read_map(map_file or PACKAGED)
    speed = device_speed(settings.simulation)
    if link_mb_s is not None:
        speed = replace(speed, link_mbit=8 * link_mb_s)
    given = [group.budget_mb for group in settings.cohort.local if group.budget_mb]
    budget = min(given, default=0.0) if budget_mb is None else budget_mb
    with waiting("dealing the data and counting cuts"):
        devices = population(settings)
        advice = ranked(settings, devices, found, speed=speed, budget_mb=budget, target=target, by=by)
    if not as_json:
        for line in words.lines(advice):
            print(line)
    return words.values(advice)
