"""The catalog: devices as their makers describe them, one file each in ``profiles/catalog``, until one is measured.

A file is ``schema``, ``title`` and groups of figures. A figure is a field of :class:`~profiles.device.DeviceProfile`
with its value; a group says for its figures of which ``kind`` they are (``datasheet`` or ``measured``) and their
``source``. Measured ones have a ``date`` and take the place of the datasheet's. The file's name is the device's name.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from profiles.device import DeviceProfile
from profiles.stored_profile import ProfileUnusable

SCHEMA = "apportion.known-device/1"
FOLDER = Path(__file__).parent / "catalog"
_NOT_A_FIGURE = ("device", "budget_bytes", "probed_at", "sources")


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of a device that have one source."""

    kind: Literal["datasheet", "measured"]
    source: str
    values: dict[str, Any]
    date: datetime.date | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.source}" + (f", {self.date}" if self.date else "")


class KnownDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device of the catalog.

    Attributes:
        title: as people call it.
        figures: a field is in one group of a kind at most.
    """

    schema: str
    title: str
    figures: tuple[Figures, ...]
    name: str = ""

    def profile(
        self,
        device: str = "",
        *,
        budget_bytes: int = 0,
        supervisor_idle_bytes: int = 0,
        trainer_idle_bytes: Mapping[str, int] | None = None,
    ) -> DeviceProfile:
        """A profile to plan with before the device is at hand; its sources say ``datasheet: ...``.

        Args:
            device: id of the stand-in; else the catalog's name.
            supervisor_idle_bytes, trainer_idle_bytes: measured elsewhere; what the catalog has measured comes first.

        Raises:
            ProfileUnusable: a figure is not of its field's type.
        """
        groups = sorted(self.figures, key=lambda group: group.kind)  # datasheet first, so that measured ones win
        values: dict[str, Any] = {
            "supervisor_idle_bytes": supervisor_idle_bytes,
            "trainer_idle_bytes": dict(trainer_idle_bytes or {}),
        }
        sources: dict[str, str] = {}
        for group in groups:
            values |= group.values
            sources |= dict.fromkeys(group.values, str(group))
        values |= {"device": device or self.name, "budget_bytes": budget_bytes, "sources": sources}
        try:
            return _with_cores_told(msgspec.convert(values, DeviceProfile))
        except msgspec.ValidationError as error:
            raise ProfileUnusable(f"catalog, {self.name}: {error}; correct the figure") from error


def known_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Names of the catalog's devices, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def known_device(name: str, folder: Path = FOLDER) -> KnownDevice:
    """The device of that name.

    Raises:
        ProfileUnusable: the catalog has none, or its file is not as the module describes; the text names what is wrong.
    """
    if name not in known_names(folder):
        raise ProfileUnusable(f"device {name[:80]!r} is not in the catalog; it has {', '.join(known_names(folder))}")
    path = folder / f"{name}.toml"
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), KnownDevice)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileUnusable(f"catalog, {path.name}: {error}; correct the file") from error
    if problem := _problem(found):
        raise ProfileUnusable(f"catalog, {path.name}: {problem}; correct the file")
    return msgspec.structs.replace(found, name=name)


def recognise(profile: DeviceProfile, folder: Path = FOLDER) -> KnownDevice | None:
    """The catalog's device that a probed one is: same board, and the smallest memory that holds what was found.

    A system shows less memory than its datasheet, never more. None when no board of the catalog matches.
    """
    if not profile.board:
        return None
    known = [(device.profile(), device) for device in (known_device(name, folder) for name in known_names(folder))]
    fitting = [
        (described.ram_bytes, device.name, device)
        for described, device in known
        if described.board and _is_board(profile.board, described.board) and described.ram_bytes >= profile.ram_bytes
    ]
    return min(fitting)[2] if fitting else None


def _is_board(found: str, described: str) -> bool:
    """A board's own text adds its revision to the described one."""
    return found == described or found.startswith(f"{described} Rev ")


def _with_cores_told(profile: DeviceProfile) -> DeviceProfile:
    """What follows from ``cores`` and is not given by itself, as a probe gives it."""
    if not profile.cores:
        return profile
    first = profile.cores[0]
    count = sum(group.count for group in profile.cores)
    derived = {"cpu_count": count, "cpu_model": first.name, "cpu_max_mhz": first.max_mhz}
    new = {name: value for name, value in derived.items() if name not in profile.sources}
    sources = {**profile.sources, **dict.fromkeys(new, profile.sources["cores"])}
    return msgspec.structs.replace(profile, **new, sources=sources)


def _problem(device: KnownDevice) -> str:
    if device.schema != SCHEMA:
        return f"schema {device.schema!r}, this release reads {SCHEMA!r}"
    if device.name:
        return "the file's name is the device's name; leave 'name' out"
    known = set(DeviceProfile.__struct_fields__).difference(_NOT_A_FIGURE)
    seen: set[tuple[str, str]] = set()
    for group in device.figures:
        if not group.source.strip():
            return f"{', '.join(group.values)}: no source is named"
        if group.kind == "measured" and group.date is None:
            return f"{', '.join(group.values)}: measured, and without a date"
        for field in group.values:
            if field not in known:
                return f"'{field}' is no figure of a device; there are {', '.join(sorted(known))}"
            if (field, group.kind) in seen:
                return f"'{field}' has two {group.kind} figures"
            seen.add((field, group.kind))
    return ""
