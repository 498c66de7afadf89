"""``apportion profile NAME``: a ladder climbed on a device of the fleet book, over SSH or adb, and what came of it.

The ladder goes there as one file and is removed afterwards. What was measured stays in the agent's store there, whose
next hello carries it, so a climb whose connection breaks goes on where it was with the same command.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from coordinator.cli.device_reaching import Login, Reach, open_host
from coordinator.cli.device_requests import installation_of
from coordinator.fleet.book import DeviceEntry, FleetBook
from coordinator.fleet.commands import opening
from coordinator.fleet.host import CommandFailed, Host
from coordinator.fleet.installation import Installation
from edge.contracts.errors import ConfigError
from edge.measuring.ladder import FILE_NAME, Ladder, chosen_rungs, ladder_path, read_ladder
from edge.measuring.report import LadderArguments
from profiles.device import DeviceProfile
from profiles.stored_profile import ProfileUnusable, read_profile

CLIMB_S = 3 * 3600.0
_ARCHIVE = "ladder.tar"
_KEPT = ("budget_bytes", "max_threads", "sparse_below", "link_bytes_per_s", "link_measured_at", "link_method")
"""What only the agent knows, taken from the last profile."""


def fleet_entry(fleet: Path, name: str) -> tuple[FleetBook, DeviceEntry] | None:
    """The book and the device of that name in it; None without either."""
    if not name or not fleet.is_dir():
        return None
    book = FleetBook(fleet)
    entry = book.find(name)
    return None if entry is None else (book, entry)


def kept_values(book: FleetBook, entry: DeviceEntry) -> dict[str, Any]:
    """What the book knows of a device, without asking it.

    Raises:
        ConfigError: it has no profile of it, or one that cannot be read.
    """
    hint = f"apportion device probe {entry.device}, or measure it with --ladder DIR"
    if not entry.profile:
        raise ConfigError([f"the fleet book {book.folder} has no profile of '{entry.device}'"], hint=hint)
    try:
        stored = read_profile(book.folder / entry.profile)
    except ProfileUnusable as error:
        raise ConfigError([str(error)], hint=hint) from error
    profile = msgspec.to_builtins(stored.profile)
    return {"method": stored.method, "known_as": None, "stored": str(book.folder / entry.profile), "profile": profile}


def climbed_values(
    book: FleetBook, entry: DeviceEntry, arguments: LadderArguments, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The values of ``--json`` as the device found them, its profile kept in the book as measured.

    Raises:
        ConfigError: the device was revoked; rungs that the ladder does not have; the extra ``fleet`` is missing.
        HostUnreachable: it cannot be reached; also HostLost, CommandFailed, DeviceBusy.
    """
    if entry.revoked_at:
        raise ConfigError([f"device '{entry.device}' was revoked"], hint="apportion device add TARGET adds it again")
    if arguments.keep is not None:
        raise ConfigError(["--keep: on a device of the fleet its agent's own store is meant"], hint="leave it out")
    arguments.climb()  # whatever cannot be is said before anything is sent
    with book.working_on(entry.device):
        try:
            told = asyncio.run(_climb(book, entry, arguments, tell))
        except ModuleNotFoundError as error:
            if error.name not in ("asyncssh", "adbutils"):
                raise
            raise ConfigError([f"{error.name} is not installed here"], hint="pip install 'apportion[fleet]'") from error
        try:
            found = msgspec.convert(told["profile"], DeviceProfile)
        except (KeyError, msgspec.ValidationError) as error:
            raise CommandFailed(
                f"{entry.device}: what it says is no profile ({error})", hint=f"apportion device upgrade {entry.device}"
            ) from error
        stored = book.stored_profile(entry)
        if stored is not None:
            found = msgspec.structs.replace(found, **{name: getattr(stored.profile, name) for name in _KEPT})
        path = book.keep_profile(found, method="measured")
    tell(f"kept in {path}")
    return {**told, "stored": path, "profile": msgspec.to_builtins(found)}


async def _climb(
    book: FleetBook, entry: DeviceEntry, arguments: LadderArguments, tell: Callable[[str], None]
) -> dict[str, Any]:
    installation = installation_of(entry, book.settings())
    async with open_host(Reach.of_entry(entry, Login())) as host:
        return await climb_on(host, installation, arguments, tell)


async def climb_on(
    host: Host, installation: Installation, arguments: LadderArguments, tell: Callable[[str], None]
) -> dict[str, Any]:
    """What ``apportion profile --ladder --json`` says on ``host``, without its head.

    Raises:
        CommandFailed: there is no installation that can do it, or it failed there; the message has its words.
        HostLost: the connection ended.
    """
    with tempfile.TemporaryDirectory() as made:
        archive = Path(made) / _ARCHIVE
        _pack(archive, arguments)
        tell(f"{host.name}: sending a ladder of {archive.stat().st_size / 1e6:.1f} MB, then measuring; this takes long")
        await host.put(archive, f"{installation.folder}/{_ARCHIVE}")
    done = await host.run(_script(installation, arguments), timeout_s=CLIMB_S)
    for line in done.stderr.splitlines():
        tell(line)
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        words = (done.stderr.strip() or "it said nothing")[-400:]
        raise CommandFailed(
            f"{host.name}: apportion profile --ladder ended with status {done.status}: {words}",
            hint=f"bring its installation up to date: apportion device upgrade {installation.device}",
        ) from error
    if not told.get("ok"):
        problem = told.get("error", {})
        raise CommandFailed(f"{host.name}: {problem.get('message', told)}", hint=str(problem.get("hint", "")))
    return {name: value for name, value in told.items() if name not in ("schema", "ok")}


def _pack(archive: Path, arguments: LadderArguments) -> None:
    """The chosen rungs and a list of them alone, so that no more is sent than is measured."""
    whole = read_ladder(arguments.folder)
    chosen = chosen_rungs(whole, quick=arguments.quick, runtime=arguments.runtime, numbers=arguments.rungs)
    with tempfile.NamedTemporaryFile() as listed, tarfile.open(archive, "w") as tar:
        listed.write(msgspec.json.encode(Ladder(rungs=chosen)))
        listed.flush()
        tar.add(listed.name, ladder_path(Path("ladder")))
        for rung in chosen:
            tar.add(arguments.folder / rung.folder, Path("ladder") / rung.folder)


def _script(installation: Installation, arguments: LadderArguments) -> str:
    """Unpacks, climbs, and removes the ladder; the status is the climb's."""
    words = ["--ladder", "ladder", "--keep", "store", "--name", installation.device, "--json"]
    words += ["--quick"] if arguments.quick else []
    words += ["--again"] if arguments.again else []
    words += ["--threads", arguments.threads] if arguments.threads else []
    words += ["--ceiling-mb", f"{arguments.ceiling_mb:g}"] if arguments.ceiling_mb else []
    return (
        opening(installation)
        + f"""\
cd "$folder"
trap 'rm -rf ladder {_ARCHIVE}' EXIT
rm -rf ladder
environment/bin/python -m tarfile -e {_ARCHIVE} .
[ -f ladder/{FILE_NAME} ]
environment/bin/python -m edge profile {shlex.join(words)}
"""
    )
