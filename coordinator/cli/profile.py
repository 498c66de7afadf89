"""``apportion profile``: what this machine is, or what the catalog says a device is, as a table, JSON or a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import verb
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from profiles.device import DeviceProfile
    from profiles.known_devices import KnownDevice

EXAMPLE = "Example: apportion profile pi-4-4gb --json"
_HERE = "this-machine"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile", epilog=EXAMPLE)(profile)


@verb("profile")
def profile(
    device: Annotated[str, typer.Argument(help="a device of the catalog; else this machine is probed")] = "",
    listed: Annotated[bool, typer.Option("--list", help="name the catalog's devices")] = False,
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="keep the profile as a file in this folder")] = None,
    name: Annotated[
        str, typer.Option(help="the device's id in that file; else the catalog's name, or the host's")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Memory, processors, clocks, heat, battery, storage and system, each with where the figure is from."""
    from profiles.known_devices import known_device, known_names
    from profiles.stored_profile import ProfileUnusable

    try:
        if listed:
            return _catalog([known_device(known) for known in known_names()], quiet=as_json)
        return _one(device, name, store, quiet=as_json)
    except ProfileUnusable as error:
        raise ConfigError([str(error)], hint="apportion profile --list names the catalog's devices") from error


def _catalog(devices: list[KnownDevice], *, quiet: bool) -> dict[str, Any]:
    rows = []
    for device in devices:
        found = device.profile()
        kinds = sorted({source.partition(":")[0] for source in found.sources.values()})
        rows.append(
            {"name": device.name, "title": device.title, "ram_bytes": found.ram_bytes, "cores": _cores(found)}
            | {"figures": " and ".join(kinds)}
        )
        if not quiet:
            ram = f"{found.ram_bytes / 2**20:.0f} MB"
            print(f"{device.name:12} {device.title:28} {ram:>8}  {_cores(found)} ({rows[-1]['figures']})")
    return {"devices": rows}


def _one(name: str, device: str, store: Path | None, *, quiet: bool) -> dict[str, Any]:
    import msgspec

    from profiles.known_devices import known_device, recognise
    from profiles.probe import probe
    from profiles.stored_profile import store_profile

    if name:
        found, method, known = known_device(name).profile(device), "datasheet", name
    else:
        found, method = probe(device or os.uname().nodename or _HERE), "probe"
        recognised = recognise(found)
        known = recognised.name if recognised else ""
    path = "" if store is None else str(store_profile(store, found, method=method))
    if not quiet:
        _print(found, known)
        if path:
            print(f"kept in {path}")
    return {"method": method, "known_as": known or None, "stored": path or None, "profile": msgspec.to_builtins(found)}


def _print(found: DeviceProfile, known: str) -> None:
    rows: list[tuple[str, str, str]] = [
        ("board", found.board, "board"),
        ("cores", _cores(found), "cores"),
        ("architecture", found.machine, "machine"),
        ("clock now", _number(found.cpu_mhz, "MHz"), "cpu_mhz"),
        ("memory", _number(found.ram_bytes / 2**20 or None, "MB"), "ram_bytes"),
        ("memory free", _number(found.free_ram_bytes / 2**20 or None, "MB"), "free_ram_bytes"),
        ("memory limit", _number((found.memory_limit_bytes or 0) / 2**20 or None, "MB"), "memory_limit_bytes"),
        ("storage", _number(found.storage_total_bytes / 1e9 or None, "GB"), "storage_total_bytes"),
        ("storage free", _number(found.storage_free_bytes / 1e9 or None, "GB"), "storage_free_bytes"),
        ("temperature", _number(found.temperature_c, "C", digits=1), "temperature_c"),
        ("throttling", "" if found.throttling is None else ", ".join(found.throttling) or "none", "throttling"),
        ("battery", _number(found.battery_percent, "%"), "battery_percent"),
        ("charging", {True: "yes", False: "no", None: ""}[found.charging], "charging"),
        ("system", found.os_name, "os_name"),
        ("kernel", found.system, "system"),
        ("python", found.python, "python"),
    ]
    print(f"{found.device}" + (f" ({known} of the catalog)" if known and known != found.device else ""))
    for title, value, field in rows:
        if value:
            print(f"  {title:14} {value:36} {found.sources.get(field, '')}".rstrip())
    unknown = [title for title, value, _ in rows if not value]
    if unknown:
        print(f"  not known      {', '.join(unknown)}")


def _cores(found: DeviceProfile) -> str:
    return " + ".join(
        f"{group.count} x {group.name or 'unnamed'}" + (f" {group.max_mhz:.0f} MHz" if group.max_mhz else "")
        for group in found.cores
    )


def _number(value: float | None, unit: str, *, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f} {unit}"
