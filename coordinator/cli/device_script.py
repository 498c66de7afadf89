"""``apportion device add --print-script``: a folder with a script that does on the machine what SSH would have done."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from coordinator.cli.device_claiming import listen_url, make_link
from coordinator.cli.device_requests import Requests, kept_arguments
from coordinator.fleet.book import FleetBook, FleetSettings
from coordinator.fleet.install_script import InstallScript, facts_of
from coordinator.fleet.wheelhouse import build_wheelhouse
from edge.contracts.errors import ConfigError


def write_script(
    folder: Path,
    book: FleetBook,
    settings: FleetSettings,
    requests: Requests,
    device: str,
    *,
    machine: str,
    python: str,
    glibc: str,
    claim_at: str,
    expires: str,
) -> dict[str, Any]:
    """Write the script for ``device`` to ``folder``; the values of ``--json``.

    Args:
        claim_at: where the script claims the device's certificate; empty: somebody signs its request.

    Raises:
        ConfigError: no packages are there for such a machine, or the device is reached in another way.
    """
    begun = time.monotonic()
    facts = facts_of(machine, python, glibc)
    entry = book.find(device)
    if entry is not None and entry.way != "claim" and not entry.revoked_at:
        raise ConfigError(
            [f"device '{device}' is reached over {entry.way}: add it there"],
            hint=f"another --device, or first: apportion device revoke {device}",
        )
    installation = requests.installation(device, settings, entry)
    print(f"packages for {machine}, Python {python}: fetched, where they are not here yet", file=sys.stderr, flush=True)
    with book.alone("wheels"):
        wheels = build_wheelhouse(book.folder / "wheels", facts, installation.runtime)
    link, seconds = "", 0
    if claim_at:
        link, seconds = make_link(book, settings, device, listen_url(settings, claim_at), expires)
    book.change(
        device,
        way="claim",
        target="",
        installation=kept_arguments(installation),
        facts=msgspec.to_builtins(facts),
        release=wheels.release,
        added_at=time.time(),
        enrolled_at=0.0,
        revoked_at=0.0,
        left="",
    )
    path = InstallScript(installation, facts, wheels, Path(settings.identity), link).write(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{path}: makes a machine the device '{device}' ({machine}, Python {python}, glibc {glibc} or newer)")
    print(f"Read it, copy {folder} there ({size / 2**20:.0f} MB), and run it: sh {path.name}")
    if link:
        print(f"It enrols within {expires}, once, while this runs here: apportion device claims --listen {claim_at}")
    else:
        print("It stops when it has made its key, and says what to do with its request.")
    return {
        "device": device,
        "script": str(path),
        "bytes": size,
        "files": sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()),
        "expires_s": seconds or None,
        "seconds": round(time.monotonic() - begun, 2),
    }
