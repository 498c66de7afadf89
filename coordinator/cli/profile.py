"""``apportion profile``: what this machine is, or what the catalog says a device is, as a table, JSON or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from coordinator.cli.command import verb
from coordinator.cli.ladder import layer_artifact, layer_artifact_values, written_values
from coordinator.cli.profile_remote import climbed_values, fleet_entry, kept_values
from coordinator.fleet.book import DeviceEntry, FleetBook
from edge.commands.profile import (
    AGAIN_HELP,
    CEILING_HELP,
    DESCRIPTION,
    EXAMPLE,
    ITERATIONS_HELP,
    KEEP_HELP,
    LADDER_HELP,
    LAYER_TIMES_HELP,
    MEASURE_HELP,
    QUICK_HELP,
    RUNG_HELP,
    RUNTIME_HELP,
    THREADS_HELP,
    catalog_values,
    layer_times,
    measured_values,
    profile_lines,
    profile_values,
)
from edge.measuring.ladder import ladder_path
from edge.measuring.report import LadderArguments
from edge.runtimes import DEFAULT
from profiles.device import DeviceProfile
from profiles.stored_profile import store_profile

LAYERS_EXPORTED = "; a model's name exports one first, with --ladder-out DIR for a device"
WRITTEN_FIRST = "; it is written first where there is none"
LADDER_OUT_HELP = "write a ladder to this folder, for devices: copy it there and give it to --ladder"
RUNTIMES_WRITTEN = f"; with --ladder-out: write rungs for it, else for {DEFAULT}"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile", help=DESCRIPTION, epilog=EXAMPLE)(profile)


@verb("profile")
def profile(
    device: Annotated[str, typer.Argument(help="a device of the fleet or the catalog; else this machine")] = "",
    listed: Annotated[bool, typer.Option("--list", help="name the catalog's devices")] = False,
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="keep the profile as a file in this folder")] = None,
    name: Annotated[str, typer.Option(help="the device's id; else the catalog's name, or the host's")] = "",
    measure: Annotated[list[Path] | None, typer.Option(metavar="DIR", help=MEASURE_HELP)] = None,
    batches: Annotated[str, typer.Option(help="with --measure: batch sizes, 8,32; else the artifact's")] = "",
    threads: Annotated[str, typer.Option(metavar="N,N", help=THREADS_HELP)] = "",
    steps: Annotated[int, typer.Option(min=1, help="with --measure: steps that are timed")] = 20,
    ladder: Annotated[Path | None, typer.Option(metavar="DIR", help=LADDER_HELP + WRITTEN_FIRST)] = None,
    ladder_out: Annotated[Path | None, typer.Option(metavar="DIR", help=LADDER_OUT_HELP)] = None,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    rung: Annotated[list[int] | None, typer.Option(metavar="N", help=RUNG_HELP)] = None,
    runtime: Annotated[str, typer.Option(help=RUNTIME_HELP + RUNTIMES_WRITTEN)] = "",
    ceiling_mb: Annotated[float, typer.Option(metavar="N", min=0, help=CEILING_HELP)] = 0.0,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help=KEEP_HELP)] = None,
    again: Annotated[bool, typer.Option("--again", help=AGAIN_HELP)] = False,
    layer_times_of: Annotated[
        str, typer.Option("--layer-times", metavar="MODEL", help=LAYER_TIMES_HELP + LAYERS_EXPORTED)
    ] = "",
    iterations: Annotated[int, typer.Option(min=1, help=ITERATIONS_HELP)] = 5,
    fleet: Annotated[Path, typer.Option(metavar="DIR", help="folder of the fleet book")] = Path("fleet"),
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """As :mod:`edge.commands.profile`, whose lines go to stderr with ``--json``."""
    if listed:
        return catalog_values(print)
    if ladder_out is not None and layer_times_of:
        return layer_artifact_values(ladder_out, layer_times_of)
    if ladder_out is not None:
        return written_values(ladder_out, runtime=runtime, quick=quick)
    arguments = None
    if ladder is not None:
        if not ladder_path(ladder).exists():
            written_values(ladder, runtime=runtime, quick=quick)
        arguments = LadderArguments(ladder, quick, tuple(rung or ()), runtime, threads, ceiling_mb, keep, again)
    entry = fleet_entry(fleet, device)
    if entry is None:
        values = profile_values(device, name, store, print, arguments, keep=keep)
    else:
        values = _of_the_fleet(*entry, store, arguments)
    if measure:
        values["measured"] = measured_values(measure, batches, threads, steps, print)
    if layer_times_of:
        with layer_artifact(layer_times_of) as artifact:
            values["layer_times"] = layer_times(artifact, iterations, values, print)
    return values


def _of_the_fleet(
    book: FleetBook, entry: DeviceEntry, store: Path | None, arguments: LadderArguments | None
) -> dict[str, Any]:
    """A fleet's device: what the book has of it, or what a ladder measures there."""
    values = kept_values(book, entry) if arguments is None else climbed_values(book, entry, arguments, print)
    found = msgspec.convert(values["profile"], DeviceProfile)
    if arguments is None:
        for line in profile_lines(found):
            print(line)
    if store is not None:
        values["stored"] = str(store_profile(store, found, method=values["method"]))
    return values
