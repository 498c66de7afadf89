"""What ``apportion device`` does on machines that it can reach: add, upgrade, probe, logs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from coordinator.cli.command import parse_problem
from coordinator.cli.device_adding import Adding, Outcome
from coordinator.cli.device_greeting import open_greeter
from coordinator.cli.device_progress import Progress
from coordinator.cli.device_reaching import Login, Reach, name_of, open_host
from coordinator.cli.device_requests import Requests, installation_of
from coordinator.cli.device_table import outcome_lines, profile_lines
from coordinator.fleet.book import DeviceEntry, FleetBook, FleetSettings
from coordinator.fleet.greeting import Greeter
from edge.contracts.errors import ConfigError
from profiles.device import DeviceProfile

T = TypeVar("T")

ROLL_CALL_S = 2.0
"""Time for a device that trains to read its sensors and answer."""


def run_together(work: Coroutine[Any, Any, T], *, waiting: int = 1) -> T:
    """What ``work`` gives; up to ``waiting`` devices are waited for in threads of their own."""

    async def main() -> T:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=2 * waiting + 4))
        return await work

    return asyncio.run(main())


def add_targets(
    book: FleetBook,
    settings: FleetSettings,
    requests: Requests,
    targets: Sequence[str],
    ids: Sequence[str],
    *,
    adb: bool,
    login: Login,
    wait_s: float | None,
    replace: bool,
) -> dict[str, Any]:
    """Make devices of ``targets``; the values of ``--json``.

    Args:
        ids: none, or one for each target.
        wait_s: for each one's hello; None does not wait.
        replace: a certificate that another key has under a device's id gives way.
    """
    if ids and len(ids) != len(targets):
        raise parse_problem("--device", f"{len(ids)} ids for {len(targets)} targets: give one for each, or none")
    if len(set(targets)) != len(targets) or len(set(ids)) != len(ids):
        raise parse_problem("TARGET", "a target or an id is given twice")
    if login.fingerprint and len(targets) > 1:
        raise parse_problem("--accept-host-key", "is the key of one host; add one target at a time with it")
    machines = [
        _as_before(Reach.parse(text, login, adb=adb), device, book)
        for text, device in zip(targets, list(ids) or [""] * len(targets), strict=True)
    ]
    return _bring_up(book, settings, requests, machines, wait_s, replace=replace)


def _as_before(reach: Reach, device: str, book: FleetBook) -> tuple[Reach, str]:
    """With the key that opened the machine the last time and the id that it got, where none is given."""
    entry = book.of_target(reach.way, reach.target, reach.port)
    return (reach, device) if entry is None else (Reach.of_entry(entry, reach.login), device or entry.device)


def upgrade_devices(fleet: Path, devices: Sequence[str], login: Login, *, wait_s: float | None) -> dict[str, Any]:
    """Bring this release to ``devices``, or to all that can be reached."""
    book = FleetBook(fleet)
    settings = book.settings()
    entries = [book.get(device) for device in devices] or [e for e in book.devices() if not e.revoked_at]
    if not entries:
        raise ConfigError([f"the fleet book {fleet} has no devices"], hint="apportion device add TARGET")
    gone = [entry.device for entry in entries if entry.revoked_at]
    if gone:
        raise ConfigError([f"device '{device}' was revoked; add it again instead" for device in gone])
    unreachable = [entry.device for entry in entries if entry.way == "claim"]
    if unreachable and devices:
        raise ConfigError([f"device '{device}' came with a claim link; upgrade it there" for device in unreachable])
    machines = [(Reach.of_entry(entry, login), entry.device) for entry in entries if entry.way != "claim"]
    for device in unreachable:
        print(f"{device}: came with a claim link, cannot be reached; left as it is", file=sys.stderr)
    return _bring_up(book, settings, Requests(), machines, wait_s, replace=False)


def _bring_up(
    book: FleetBook,
    settings: FleetSettings,
    requests: Requests,
    machines: Sequence[tuple[Reach, str]],
    wait_s: float | None,
    *,
    replace: bool,
) -> dict[str, Any]:
    progress = Progress()
    # Before anything is done on a machine: a broker that is not there is told at once.
    with _greeter(settings, wait_s) as greeter:
        alone = len(machines) == 1
        width = 0 if alone else max(len(device or reach.shown) for reach, device in machines)
        adding = Adding(book, settings, requests, greeter, wait_s or 0.0, replace, width, alone)
        outcomes = run_together(adding.all(machines), waiting=len(machines))
    for line in outcome_lines(outcomes, progress.seconds):
        print(line)
    return _values(outcomes, progress.seconds)


def _values(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    values: dict[str, Any] = {
        "ok": not failed,
        "devices": [outcome.as_dict() for outcome in outcomes],
        "changed": any(outcome.changed for outcome in outcomes),
        "seconds": round(seconds, 2),
    }
    if failed and failed[0].error is not None:
        first = failed[0].error
        message = "; ".join(f"{outcome.device or outcome.target}: {outcome.error}" for outcome in failed)
        values["error"] = {"code": first.code, "message": message, "hint": first.hint}
        values["exit_code"] = max(outcome.error.exit_code for outcome in failed if outcome.error is not None)
    return values


@contextlib.contextmanager
def _greeter(settings: FleetSettings, wait_s: float | None) -> Iterator[Greeter | None]:
    if wait_s is None:
        yield None
        return
    with open_greeter(settings) as greeter:
        yield greeter


def probe_target(fleet: Path, target: str, login: Login, *, adb: bool, wait_s: float) -> dict[str, Any]:
    """What a machine is; of a device of the book its profile too, which is kept."""
    book = FleetBook(fleet)
    entry = None if adb or "@" in target else book.find(target) if target else None
    if entry is not None and entry.way == "claim":
        return _ask_over_broker(book, entry, wait_s)
    reach = Reach.of_entry(entry, login) if entry is not None else Reach.parse(target, login, adb=adb)
    return run_together(_probe(book, reach, entry))


async def _probe(book: FleetBook, reach: Reach, entry: DeviceEntry | None) -> dict[str, Any]:
    from coordinator.fleet.facts import probe_host, require_fit
    from coordinator.fleet.host import HostUnfit
    from coordinator.fleet.installation import Installation
    from coordinator.fleet.provisioning import measured_profile

    installation = None if entry is None or entry.revoked_at else installation_of(entry, book.settings())
    unfit: HostUnfit | None = None
    profile: DeviceProfile | None = None
    async with open_host(reach) as host:
        name = await name_of(host) if entry is None else entry.device
        facts = await probe_host(host, "" if installation is None else installation.folder)
        try:
            asked = installation or Installation(
                device=name, federation="probe", broker_url="mqtts://localhost", data="data"
            )
            require_fit(facts, asked, 0)
        except HostUnfit as error:
            unfit = error
        if installation is not None and facts.installed:
            profile = await measured_profile(host, installation)
    told = msgspec.to_builtins(facts)
    print(f"{name} ({reach.shown})")
    for line in _facts_lines(told):
        print(f"  {line}")
    if unfit is not None:
        print(f"  no device can be made of it: {unfit}\n  hint: {unfit.hint}")
    elif installation is None:
        target = f"--adb {reach.target}".rstrip() if reach.way == "adb" else reach.shown
        print(f"  a device can be made of it: apportion device add {target}")
    values: dict[str, Any] = {"device": name, "target": reach.shown, "facts": told, "fit": unfit is None}
    values["unfit"] = None if unfit is None else {"message": str(unfit), "hint": unfit.hint}
    return {**values, **_kept(book, name, profile)}


def _ask_over_broker(book: FleetBook, entry: DeviceEntry, wait_s: float) -> dict[str, Any]:
    with open_greeter(book.settings()) as greeter:
        hello = greeter.wait(entry.device, wait_s)
    now = time.time()
    book.change(entry.device, seen_at=now, enrolled_at=entry.enrolled_at or now)
    print(f"{entry.device} (over the broker)")
    values = {"device": entry.device, "target": None, "facts": None, "fit": True, "unfit": None}
    return {**values, **_kept(book, entry.device, hello.profile)}


def who_is_here(book: FleetBook, settings: FleetSettings) -> dict[str, str]:
    """Device -> what it does now, of those of the book that say hello when everyone is called."""
    with open_greeter(settings) as greeter:
        hellos = greeter.roll_call(ROLL_CALL_S)
    here = {entry.device: hellos[entry.device] for entry in book.devices() if entry.device in hellos}
    for device in here:
        book.change(device, seen_at=time.time())
    return {device: hello.state for device, hello in here.items()}


def _kept(book: FleetBook, device: str, profile: DeviceProfile | None) -> dict[str, Any]:
    if profile is None:
        return {"profile": None, "stored": None}
    path = book.keep_profile(profile, method="probe")
    for line in profile_lines(profile):
        print(f"  {line}")
    print(f"  kept in {path}")
    return {"profile": msgspec.to_builtins(profile), "stored": path}


def _facts_lines(facts: dict[str, Any]) -> list[str]:
    python = facts["python"]
    version = "none that can be used" if python is None else ".".join(map(str, python["version"]))
    libc = " ".join([facts["libc"] or "unknown", ".".join(map(str, facts["libc_version"]))])
    return [
        f"{'processor':14} {facts['machine']}, programs of {facts['bits']} bits",
        f"{'C library':14} {libc}",
        f"{'Python':14} {version}" + ("" if python is None else f" ({python['path']})"),
        f"{'space':14} {facts['free_bytes'] / 2**20:.0f} MB free",
        f"{'services':14} {'systemd' if facts['init'] == 'systemd' else 'a script that starts the agent again'}",
        f"{'installed':14} {facts['installed'][:12] or 'nothing'}",
    ]


def show_log(fleet: Path, device: str, login: Login, *, lines: int) -> dict[str, Any]:
    """The end of the log of ``device``."""
    from coordinator.fleet.provisioning import agent_log

    book = FleetBook(fleet)
    entry = book.get(device)
    if entry.revoked_at:
        raise ConfigError([f"device '{device}' was revoked: its agent and its log are gone"])
    reach = Reach.of_entry(entry, login)

    async def read() -> str:
        async with open_host(reach) as host:
            return await agent_log(host, installation_of(entry, book.settings()), lines)

    text = run_together(read()).rstrip("\n")
    print(text if text else f"the log of {device} is empty: its agent has had nothing to say")
    return {"device": device, "lines": text.splitlines()}
