"""Devices as people see them: what came of adding some, the list of all, a profile in a few lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.cli.device_reaching import Login, Reach
from coordinator.fleet.book import DeviceEntry, FleetBook
from edge.runtimes import BROWSER
from edge.system.printable import printable
from profiles.device import DeviceProfile
from profiles.stored_profile import StoredProfile

if TYPE_CHECKING:
    from coordinator.cli.device_adding import Outcome

MB = 2**20


def columns(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """``rows``, the first of which is the heading, as lines; a column that is empty throughout is left out.

    Args:
        right: columns that are set to the right.
    """
    used = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    lines = []
    for row in rows:
        cells = [f"{row[i]:>{widths[i]}}" if i in right else f"{row[i]:{widths[i]}}" for i in used]
        lines.append("  ".join(cells).rstrip())
    return lines


def outcome_lines(outcomes: Sequence[Outcome], seconds: float) -> list[str]:
    """The result of adding or upgrading, for stdout."""
    rows = [["device", "board", "memory", "budget", "runtime", "examples", "installed", "done", "time"]]
    for outcome in outcomes:
        profile, hello = outcome.profile, outcome.hello
        steps = len(outcome.changed)
        done = (", ".join(outcome.changed) if steps < 4 else f"{steps} steps") or "nothing changed"
        rows.append(
            [
                outcome.device or outcome.target,
                _board(profile) if profile else outcome.machine,
                f"{profile.ram_bytes / MB:.0f} MB" if profile and profile.ram_bytes else "",
                f"{profile.budget_bytes / MB:.0f} MB" if profile and profile.budget_bytes else "",
                _runtimes(profile) if profile else "",
                "" if hello is None else "none yet" if hello.data_error else str(hello.num_examples),
                f"{outcome.installed_bytes / MB:.0f} MB" if outcome.installed_bytes else "",
                done if outcome.error is None else f"failed: {outcome.error.code}",
                f"{outcome.seconds:.1f} s",
            ]
        )
    good = sum(outcome.error is None for outcome in outcomes)
    unchanged = good == len(outcomes) and not any(outcome.changed for outcome in outcomes)
    what = f"{good} of {len(outcomes)} devices" if len(outcomes) > 1 else "1 device" if good else "no device"
    said = " ready; nothing changed" if unchanged else " ready"
    return [*columns(rows, right=frozenset({2, 3, 5, 6, 8})), f"{what}{said}, {seconds:.1f} s in all"]


def listing(book: FleetBook, *, profiles: bool, states: dict[str, str] | None = None) -> dict[str, Any]:
    """The devices of ``book``, printed; the values of ``--json``.

    Args:
        states: what those do that are there now; None: nobody was asked.
    """
    entries = book.devices()
    stored = {entry.device: book.stored_profile(entry) for entry in entries}
    browsers = _browsers(book.settings().identity)
    if not entries:
        print(f"{book.folder} has no devices yet: apportion device add TARGET")
    elif profiles:
        for line in _profile_table(entries, stored):
            print(printable(line))
    else:
        rows = [["device", "state", "now", "reached as", "runtime", "budget", "last hello", "profiled"]]
        for entry in entries:
            found = stored[entry.device]
            budget = float(entry.installation.get("budget_mb", 0) or 0)
            rows.append(
                [
                    entry.device,
                    entry.state,
                    "" if states is None else states.get(entry.device, "away"),
                    _reached_as(entry, entry.device in browsers),
                    BROWSER if entry.device in browsers else str(entry.installation.get("runtime", "")),
                    f"{budget:.0f} MB" if budget else "",
                    ago(entry.seen_at),
                    ago(found.stored_at) if found else "",
                ]
            )
        for line in columns(rows, right=frozenset({5})):
            print(printable(line))
    for entry in entries:
        if entry.left:
            print(printable(f"{entry.device}: {entry.left}"))
    settings = book.settings()
    return {
        "fleet": str(book.folder),
        "federation": settings.federation or None,
        "broker": settings.broker or None,
        "identity": settings.identity or None,
        "devices": [
            _row(entry, stored[entry.device] if profiles else None)
            | {"browser": entry.device in browsers}
            | ({} if states is None else {"now": states.get(entry.device)})
            for entry in entries
        ],
    }


def _browsers(identity: str) -> set[str]:
    """Devices that joined with a page: the authority knows a key of theirs, revoked or not."""
    if not identity or not (Path(identity) / "ca.pem").is_file():
        return set()
    from coordinator.identity.authority import Authority

    with Authority(Path(identity)) as authority:
        return {browser.device for browser in authority.records.browsers()}


def _reached_as(entry: DeviceEntry, is_browser: bool) -> str:
    if entry.way == "claim":
        return "comes by its page" if is_browser else "comes by itself"
    return Reach.of_entry(entry, Login()).shown


def ago(seconds: float) -> str:
    """How long ago, in the largest unit; empty for never."""
    if not seconds:
        return ""
    age = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age >= length:
            return f"{age / length:.0f} {unit} ago"
    return f"{age:.0f} s ago"


def profile_lines(profile: DeviceProfile) -> list[str]:
    """A profile in a few lines."""
    heat = "" if profile.temperature_c is None else f"{profile.temperature_c:.1f} C"
    rows = [
        ("board", _board(profile)),
        ("cores", _cores(profile)),
        ("memory", f"{profile.ram_bytes / MB:.0f} MB, {profile.free_ram_bytes / MB:.0f} MB free"),
        ("budget", f"{profile.budget_bytes / MB:.0f} MB" if profile.budget_bytes else ""),
        ("storage", f"{profile.storage_free_bytes / 1e9:.1f} GB free" if profile.storage_free_bytes else ""),
        ("temperature", heat),
        ("battery", "" if profile.battery_percent is None else f"{profile.battery_percent:.0f} %"),
        ("system", profile.os_name),
        ("runtime", _runtimes(profile)),
    ]
    return [f"{title:14} {value}" for title, value in rows if value]


def _profile_table(entries: Sequence[DeviceEntry], stored: dict[str, StoredProfile | None]) -> list[str]:
    rows = [["device", "board", "cores", "memory", "free", "heat", "battery", "link", "system", "profiled"]]
    for entry in entries:
        found = stored[entry.device]
        if found is None:
            rows.append([entry.device, *[""] * 8, "never"])
            continue
        profile = found.profile
        rate = profile.link_bytes_per_s
        rows.append(
            [
                entry.device,
                _board(profile),
                _cores(profile),
                f"{profile.ram_bytes / MB:.0f} MB",
                f"{profile.free_ram_bytes / MB:.0f} MB",
                "" if profile.temperature_c is None else f"{profile.temperature_c:.0f} C",
                "" if profile.battery_percent is None else f"{profile.battery_percent:.0f} %",
                "" if rate is None else f"{rate / 1e6:.1f} MB/s",
                profile.os_name,
                ago(found.stored_at),
            ]
        )
    return columns(rows, right=frozenset({3, 4, 5, 6, 7}))


def _row(entry: DeviceEntry, found: StoredProfile | None) -> dict[str, Any]:
    import msgspec

    row = {
        "device": entry.device,
        "state": entry.state,
        "way": entry.way,
        "target": entry.target or None,
        "port": entry.port or None,
        "installation": entry.installation,
        "release": entry.release or None,
        "installed_bytes": entry.installed_bytes,
        "added_at": entry.added_at or None,
        "enrolled_at": entry.enrolled_at or None,
        "seen_at": entry.seen_at or None,
        "revoked_at": entry.revoked_at or None,
        "left": entry.left or None,
        "profile": entry.profile or None,
    }
    return row if found is None else {**row, "stored_profile": msgspec.to_builtins(found)}


def _board(profile: DeviceProfile) -> str:
    return profile.board or profile.cpu_model or profile.machine


def _cores(profile: DeviceProfile) -> str:
    return " + ".join(f"{group.count} x {group.name or profile.machine}" for group in profile.cores)


def _runtimes(profile: DeviceProfile) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(profile.runtimes.items()))
