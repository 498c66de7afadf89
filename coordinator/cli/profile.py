"""``apportion profile``: what this machine is, or what the catalog says a device is, as a table, JSON or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from edge.profile_command import (
    DESCRIPTION,
    EXAMPLE,
    MEASURE_HELP,
    catalog_values,
    measured_values,
    profile_values,
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile", help=DESCRIPTION, epilog=EXAMPLE)(profile)


@verb("profile")
def profile(
    device: Annotated[str, typer.Argument(help="a device of the catalog; else this machine is probed")] = "",
    listed: Annotated[bool, typer.Option("--list", help="name the catalog's devices")] = False,
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="keep the profile as a file in this folder")] = None,
    name: Annotated[str, typer.Option(help="the device's id; else the catalog's name, or the host's")] = "",
    measure: Annotated[list[Path] | None, typer.Option(metavar="DIR", help=MEASURE_HELP)] = None,
    batches: Annotated[str, typer.Option(help="with --measure: batch sizes, 8,32; else the artifact's")] = "",
    threads: Annotated[str, typer.Option(help="with --measure: numbers of threads, 1,2; else 1")] = "",
    steps: Annotated[int, typer.Option(min=1, help="with --measure: steps that are timed")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """As :mod:`edge.profile_command`, whose lines go to stderr with ``--json``."""
    values = catalog_values(print) if listed else profile_values(device, name, store, print)
    if measure:
        values["measured"] = measured_values(measure, batches, threads, steps, print)
    return values
