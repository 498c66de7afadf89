"""``apportion profile``: what this machine is, or what the catalog says a device is, as a table, JSON or a file.

The verb where only the device agent is installed, and what both installations say.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from edge.commands.outcome import run_verb
from edge.contracts.errors import ConfigError
from edge.measuring.report import (
    LadderArguments,
    climbed,
    fit_lines,
    ladder_values,
    measured_profile,
    numbers,
)
from edge.measuring.step_measurement import StepMeasurement, measure_steps
from edge.transfer.link_rate import LinkRate
from profiles.device import DeviceProfile
from profiles.known_devices import known_device, known_names, recognise
from profiles.measured_lines import WatchedLines
from profiles.probe import probe
from profiles.stored_profile import ProfileUnusable, profile_path, store_profile

DESCRIPTION = "Memory, processors, clocks, heat, battery, storage and system, each with where the figure is from."
EXAMPLE = "Example: apportion profile pi-4-4gb --json"
MEASURE_HELP = "time and memory of this artifact's steps, each in a process of its own; may be given several times"
THREADS_HELP = "with --measure, --ladder: numbers of threads; else 1, on a ladder also all processors"
LADDER_HELP = "measure the artifacts in this folder, small to large, and fit the device's memory and times to them"
QUICK_HELP = "with --ladder: a few of its rungs, and few steps"
RUNG_HELP = "with --ladder: only the Nth rung, from 1; may be given several times"
RUNTIME_HELP = "with --ladder: only rungs for this runtime"
CEILING_HELP = "with --ladder: most memory (1 MB = 2^20 bytes) of a measuring process; else what is free"
KEEP_HELP = "the agent's store: its link's rate is shown, and --ladder keeps results and fits there for its hello"
AGAIN_HELP = "with --ladder: also measure what was measured before"
LAYER_TIMES_HELP = "time the steps of this artifact under many masks: PruneFL's constant-s and layer-s for a run file"
ITERATIONS_HELP = "with --layer-times: local iterations of a round"
_HINT = "apportion profile --list names the catalog's devices"


def profile_values(
    name: str,
    device: str,
    store: Path | None,
    tell: Callable[[str], None],
    ladder: LadderArguments | None = None,
    *,
    keep: Path | None = None,
) -> dict[str, Any]:
    """The values of ``--json``; ``tell`` gets the lines for people.

    Args:
        name: of the catalog; empty probes this machine.
        device: id in the profile; empty: the catalog's name, or this host's.
        store: folder to keep the profile in.
        ladder: measure this machine with it.
        keep: store of this machine's agent, whose link and earlier measurements belong to the profile.

    Raises:
        ConfigError: the catalog has no such device, ``device`` can name no file, or a ladder that cannot be climbed.
    """
    values: dict[str, Any] = {}
    try:
        if name:
            found, method, known = known_device(name).profile(device), "datasheet", name
        else:
            found, method = probe(device or os.uname().nodename, storage=Path.home()), "probe"
            if keep is not None:
                found = LinkRate(keep).put_into(WatchedLines(keep).now().put_into(found))
            recognised = recognise(found)
            known = "" if recognised is None else recognised.name
        if store is not None:
            profile_path(store, found.device)  # refused before anything takes long
        for line in profile_lines(found, known):
            tell(line)
        if ladder is not None:
            if name:
                raise ConfigError(
                    [f"--ladder: '{name}' is a device of the catalog, which has datasheets only"],
                    hint="give the ladder to `apportion profile` on the device itself, without a name",
                )
            done = climbed(ladder, tell)
            found, fits = measured_profile(found, done, ladder.keep)
            method = "measured"
            values["ladder"] = ladder_values(done, fits)
            for line in fit_lines(done, fits):
                tell(line)
        path = "" if store is None else str(store_profile(store, found, method=method))
    except ProfileUnusable as error:
        raise ConfigError([str(error)], hint=_HINT) from error
    if path:
        tell(f"kept in {path}")
    told = {"method": method, "known_as": known or None, "stored": path or None}
    return {**told, "profile": msgspec.to_builtins(found), **values}


def catalog_values(tell: Callable[[str], None]) -> dict[str, Any]:
    """The values of ``--list --json``; ``tell`` gets a line for each device."""
    rows: list[dict[str, Any]] = []
    for name in known_names():
        device = known_device(name)
        found = device.profile()
        kinds = " and ".join(sorted({source.partition(":")[0] for source in found.sources.values()}))
        rows.append({"name": name, "title": device.title, "ram_bytes": found.ram_bytes, "cores": _cores(found)})
        rows[-1]["figures"] = kinds
        tell(f"{name:12} {device.title:28} {_megabytes(found.ram_bytes):>8}  {_cores(found)} ({kinds})")
    return {"devices": rows}


def measured_values(
    artifacts: Sequence[Path], batches: str, threads: str, steps: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row for every artifact, batch and number of threads, measured one after the other; ``tell`` gets a line each.

    Args:
        batches, threads: numbers with commas; no batches: each artifact's own.

    Raises:
        ConfigError: numbers that are none, or an artifact that cannot be measured; also ArtifactCorrupt.
    """
    sizes, counts = numbers(batches, "--batches") or [0], numbers(threads, "--threads") or [1]
    if steps < 1:
        raise ConfigError([f"--steps: {steps} is below 1"], hint="apportion profile --help")
    rows = []
    for artifact, batch, count in itertools.product(artifacts, sizes, counts):
        found = measure_steps(artifact, batch=batch, threads=count, steps=steps)
        tell(_measured_line(found))
        rows.append(asdict(found))
    return rows


def layer_times(artifact: Path, iterations: int, values: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """``layer_times`` of ``--json``, with the link's rate that the profile in ``values`` has.

    Raises:
        ConfigError: as :func:`edge.measuring.layers.layer_values`; also ArtifactCorrupt.
    """
    from edge.measuring.layers import LayerArguments, layer_values

    if iterations < 1:
        raise ConfigError([f"--iterations: {iterations} is below 1"], hint="apportion profile --help")
    rate = values.get("profile", {}).get("link_bytes_per_s")
    return layer_values(LayerArguments(artifact, iterations), rate, tell)


def profile_command(arguments: list[str]) -> int:
    """Run the verb on a device; the exit status: 0, 1 when the file cannot be written, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="apportion profile", description=DESCRIPTION, epilog=EXAMPLE, allow_abbrev=False
    )
    parser.add_argument("device", nargs="?", default="", help="a device of the catalog; else this machine is probed")
    parser.add_argument("--list", action="store_true", help="name the catalog's devices")
    parser.add_argument("--store", metavar="DIR", type=Path, help="keep the profile as a file in this folder")
    parser.add_argument("--name", default="", help="the device's id; else the catalog's name, or the host's")
    parser.add_argument("--measure", metavar="DIR", type=Path, action="append", default=[], help=MEASURE_HELP)
    parser.add_argument("--batches", metavar="N,N", default="", help="with --measure: batch sizes; else the artifact's")
    parser.add_argument("--threads", metavar="N,N", default="", help=THREADS_HELP)
    parser.add_argument("--steps", metavar="N", type=int, default=20, help="with --measure: steps that are timed")
    parser.add_argument("--ladder", metavar="DIR", type=Path, help=LADDER_HELP)
    parser.add_argument("--quick", action="store_true", help=QUICK_HELP)
    parser.add_argument("--rung", metavar="N", type=int, action="append", default=[], help=RUNG_HELP)
    parser.add_argument("--runtime", default="", help=RUNTIME_HELP)
    parser.add_argument("--ceiling-mb", metavar="N", type=float, default=0.0, help=CEILING_HELP)
    parser.add_argument("--keep", metavar="DIR", type=Path, help=KEEP_HELP)
    parser.add_argument("--again", action="store_true", help=AGAIN_HELP)
    parser.add_argument("--layer-times", metavar="DIR", type=Path, help=LAYER_TIMES_HELP)
    parser.add_argument("--iterations", metavar="N", type=int, default=5, help=ITERATIONS_HELP)
    try:
        return run_verb(parser, arguments, _profile)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        return 130


def _profile(chosen: argparse.Namespace) -> dict[str, Any]:
    tell = _to_stderr if chosen.json else print
    if chosen.list:
        values = catalog_values(tell)
    else:
        ladder = _ladder_arguments(chosen)
        values = profile_values(chosen.device, chosen.name, chosen.store, tell, ladder, keep=chosen.keep)
    if chosen.measure:
        values["measured"] = measured_values(chosen.measure, chosen.batches, chosen.threads, chosen.steps, tell)
    if chosen.layer_times is not None:
        values["layer_times"] = layer_times(chosen.layer_times, chosen.iterations, values, tell)
    return values


def _ladder_arguments(chosen: argparse.Namespace) -> LadderArguments | None:
    if chosen.ladder is None:
        return None
    return LadderArguments(
        folder=chosen.ladder,
        quick=chosen.quick,
        rungs=tuple(chosen.rung),
        runtime=chosen.runtime,
        threads=chosen.threads,
        ceiling_mb=chosen.ceiling_mb,
        keep=chosen.keep,
        again=chosen.again,
    )


def _measured_line(found: StepMeasurement) -> str:
    what = f"  {found.artifact}, batch {found.batch}, {found.threads} threads on {found.runtime}:"
    if found.ended:
        return f"{what} ended before it was done, {found.ended}"
    grown = (found.peak_bytes - found.idle_bytes) / 2**20
    expected = f", {found.predicted_bytes / 2**20:.1f} predicted" if found.predicted_bytes else ""
    before, after = found.heat_c
    hotter = "" if before is None or after is None else f", {before:.1f} to {after:.1f} C"
    return (
        f"{what} {found.step_ms_p50:.1f} ms (p95 {found.step_ms_p95:.1f}), peak {found.peak_bytes / 2**20:.1f} MB = "
        f"idle {found.idle_bytes / 2**20:.1f} + {grown:.1f}{expected}{hotter}"
    )


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def profile_lines(found: DeviceProfile, known: str = "") -> list[str]:
    """A profile for people; ``known`` is its name in the catalog."""
    rows: list[tuple[str, str, str]] = [
        ("board", found.board, "board"),
        ("cores", _cores(found), "cores"),
        ("architecture", found.machine, "machine"),
        ("clock now", _number(found.cpu_mhz, "MHz"), "cpu_mhz"),
        ("memory", _megabytes(found.ram_bytes), "ram_bytes"),
        ("memory free", _megabytes(found.free_ram_bytes), "free_ram_bytes"),
        ("memory limit", _megabytes(found.memory_limit_bytes or 0), "memory_limit_bytes"),
        ("storage", _number(found.storage_total_bytes / 1e9 or None, "GB"), "storage_total_bytes"),
        ("storage free", _number(found.storage_free_bytes / 1e9 or None, "GB"), "storage_free_bytes"),
        ("temperature", _number(found.temperature_c, "C", digits=1), "temperature_c"),
        ("throttling", "" if found.throttling is None else ", ".join(found.throttling) or "none", "throttling"),
        ("battery", _number(found.battery_percent, "%"), "battery_percent"),
        ("charging", {True: "yes", False: "no", None: ""}[found.charging], "charging"),
        ("system", found.os_name, "os_name"),
        ("kernel", found.system, "system"),
        ("python", found.python, "python"),
        ("link", _number((found.link_bytes_per_s or 0) / 1e6 or None, "MB/s", digits=2), "link_bytes_per_s"),
    ]
    is_new = bool(known) and known != found.device
    told = [f"  {title:14} {value:36} {found.sources.get(field, '')}".rstrip() for title, value, field in rows if value]
    unknown = ", ".join(title for title, value, _ in rows if not value)
    return [
        found.device + (f" ({known} of the catalog)" if is_new else ""),
        *told,
        *([f"  not known      {unknown}"] if unknown else []),
    ]


def _cores(found: DeviceProfile) -> str:
    return " + ".join(
        f"{group.count} x {group.name or 'unnamed'}" + (f" {group.max_mhz:.0f} MHz" if group.max_mhz else "")
        for group in found.cores
    )


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MB" if size else ""


def _number(value: float | None, unit: str, *, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f} {unit}"
