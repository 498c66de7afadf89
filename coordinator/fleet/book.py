"""The fleet book: which devices there are, how each is reached, what was put on it. One JSON file per device.

::

    <folder>/fleet.json              what holds for every device: federation, broker, identity
    <folder>/devices/<id>.json       one device
    <folder>/profiles/<id>.json      its last profile (profiles.stored_profile)
    <folder>/wheels/                 packages for devices, by their processor and Python
    <folder>/lock, <folder>/busy/    held while something is changed, and while a command works on a device

A file is written beside the old one and moved over it. Changes are made to what is on the disk at that moment, under a
lock, so that two commands at a time lose nothing of each other's. No keys and no passwords are in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from coordinator.identity.folder import PUBLIC, write_file
from edge.contracts.codec import decode_json
from edge.contracts.errors import ApportionError, ConfigError, MessageRejected
from edge.contracts.topics import check_name
from profiles.device import DeviceProfile
from profiles.stored_profile import ProfileUnusable, StoredProfile, read_profile, store_profile

SETTINGS_SCHEMA = "apportion.fleet/1"
DEVICE_SCHEMA = "apportion.fleet-device/1"
MAX_BYTES = 1 << 20

AGENTS_OWN = (
    "budget_bytes",
    "supervisor_idle_bytes",
    "trainer_idle_bytes",
    "native_idle_bytes",
    "max_threads",
    "sparse_below",
    "runtimes",
    "link_bytes_per_s",
    "link_measured_at",
    "link_method",
    "memory_lines",
    "step_lines",
)
"""Fields of a profile that an agent fills in, or its store."""

Way = Literal["ssh", "adb", "claim"]

T = TypeVar("T")


class BookUnusable(ApportionError):
    """A fleet book that cannot be read or written as one; the text names the file and the next step."""

    code = "fleet-book"
    exit_code = 2


class DeviceBusy(ApportionError):
    """Another command works on the device now."""

    code = "device-busy"


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is given once and holds for every device that is added afterwards.

    Attributes:
        broker: URL as devices reach it.
        identity: folder of the authority.
        broker_folder: as ``apportion ca mosquitto --out`` wrote it; empty where the broker is kept by others.
        broker_pid_file: of the running broker; empty: it is looked for.
        web: ``https://host:port`` of the page that a run serves for phones; empty where none does.
        web_socket: ``wss://host:port[/path]`` of the broker, as phones reach it.
    """

    schema: str = SETTINGS_SCHEMA
    federation: str = ""
    broker: str = ""
    identity: str = ""
    broker_folder: str = ""
    broker_pid_file: str = ""
    web: str = ""
    web_socket: str = ""


class DeviceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One device of the fleet.

    Attributes:
        way: how the device is reached; ``claim`` ones come by themselves and cannot be reached.
        target: ``pi@raspberrypi.local`` or a serial number; empty for ``claim``.
        port, key: of SSH, and the file of a private key; 0 and empty: as ``~/.ssh/config`` says, or the usual ones.
        installation: arguments of :class:`coordinator.fleet.installation.Installation`.
        facts: what the host is, as :class:`coordinator.fleet.facts.HostFacts` says.
        steps: what has been done on the host, in order.
        release: digest of what was installed.
        added_at, enrolled_at, seen_at, revoked_at: seconds since 1970; 0: never.
        profile: file of the last profile, below the book's folder.
        left: after a revocation: what could not be removed from the host, and why.
    """

    schema: str = DEVICE_SCHEMA
    device: str
    way: Way
    target: str = ""
    port: int = 0
    key: str = ""
    installation: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    steps: tuple[str, ...] = ()
    release: str = ""
    installed_bytes: int = 0
    added_at: float = 0.0
    enrolled_at: float = 0.0
    seen_at: float = 0.0
    revoked_at: float = 0.0
    profile: str = ""
    left: str = ""

    @property
    def state(self) -> str:
        """``revoked``, ``enrolled``, or ``begun`` where something is still to be done."""
        if self.revoked_at:
            return "revoked"
        return "enrolled" if self.enrolled_at else "begun"


class FleetBook:
    """The book in ``folder``, made when something is first written.

    Raises:
        BookUnusable: what is there is no book of this release.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings()

    def settings(self) -> FleetSettings:
        """What holds for every device; all empty in a new book."""
        path = self.folder / "fleet.json"
        return _read(path, FleetSettings, SETTINGS_SCHEMA) if path.exists() else FleetSettings()

    def settle(self, **given: str) -> FleetSettings:
        """The settings, those ``given`` that are not empty in place of the old ones; written if that changes them."""
        with self._locked():
            before = self.settings()
            after = msgspec.structs.replace(before, **{name: value for name, value in given.items() if value})
            if after != before:
                self._write(self.folder / "fleet.json", after)
            return after

    def devices(self) -> list[DeviceEntry]:
        """Every device, by id."""
        found = [
            _read(path, DeviceEntry, DEVICE_SCHEMA) for path in sorted((self.folder / "devices").glob("[!.]*.json"))
        ]
        return sorted(found, key=lambda entry: entry.device)

    def find(self, device: str) -> DeviceEntry | None:
        """The device, if the book has it."""
        path = self._path(device)
        return _read(path, DeviceEntry, DEVICE_SCHEMA) if path.exists() else None

    def get(self, device: str) -> DeviceEntry:
        """The device.

        Raises:
            ConfigError: the book has none of that id; the message lists those it has.
        """
        entry = self.find(device)
        if entry is None:
            known = ", ".join(other.device for other in self.devices()) or "none"
            raise ConfigError(
                [f"device '{device}' is not in the fleet book {self.folder}; it has: {known}"],
                hint="apportion device add TARGET adds one; --fleet DIR names another book",
            )
        return entry

    def of_target(self, way: Way, target: str, port: int) -> DeviceEntry | None:
        """The device that is reached that way, if the book has it; one that stands before one that was revoked."""
        found = [e for e in self.devices() if (e.way, e.target, e.port or 22) == (way, target, port or 22)]
        return min(found, key=lambda entry: bool(entry.revoked_at), default=None)

    def change(self, device: str, **changes: Any) -> DeviceEntry:
        """The device with ``changes`` made to it; a new one needs ``way``. Written before it comes back."""
        with self._locked():
            before = self.find(device)
            if before is None:
                after = DeviceEntry(device=device, **changes)
            else:
                after = msgspec.structs.replace(before, **changes)
            if after != before:
                self._write(self._path(device), after)
            return after

    def forget(self, device: str) -> None:
        """Take the device out, as if it had never been added; nothing when it is not in the book."""
        with self._locked():
            self._path(device).unlink(missing_ok=True)

    def keep_profile(self, profile: DeviceProfile, *, method: str) -> str:
        """The file that now holds the profile of a device of the book.

        What only the device's agent knows, and a probe beside it does not, stays as the agent said it last.
        """
        before = self.stored_profile(self.get(profile.device))
        if before is not None:
            told = {name: getattr(before.profile, name) for name in AGENTS_OWN if not getattr(profile, name)}
            profile = msgspec.structs.replace(profile, **told)
        path = store_profile(self.folder / "profiles", profile, method=method)
        self.change(profile.device, profile=f"profiles/{path.name}")
        return str(path)

    def stored_profile(self, entry: DeviceEntry) -> StoredProfile | None:
        """The last profile of the device; None when there is none, or it is no longer one that can be read."""
        if not entry.profile:
            return None
        try:
            return read_profile(self.folder / entry.profile)
        except ProfileUnusable:
            return None

    @contextlib.contextmanager
    def working_on(self, device: str) -> Iterator[None]:
        """Holds the device: no other command works on it while the context is open.

        Raises:
            DeviceBusy: another one does.
        """
        self._path(device)
        with self._open_lock(self.folder / "busy" / device) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DeviceBusy(
                    f"device '{device}': another command works on it now; nothing was done",
                    hint="wait until that one has ended, then repeat this one",
                ) from error
            yield

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Holds ``what`` of this fleet, such as its wheels; waits until no other command does."""
        with self._open_lock(self.folder / "busy" / f".{what}") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._open_lock(self.folder / "lock") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _open_lock(self, path: Path) -> Iterator[int]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BookUnusable(
                f"{path}: {error.strerror}; the fleet book cannot be written",
                hint="see the rights of the folder, or name another with --fleet DIR",
            ) from error
        try:
            yield handle
        finally:
            os.close(handle)

    def _path(self, device: str) -> Path:
        try:
            check_name(device, what="device id")
        except MessageRejected as error:
            raise ConfigError([str(error)]) from error
        return self.folder / "devices" / f"{device}.json"

    def _write(self, path: Path, value: FleetSettings | DeviceEntry) -> None:
        data = msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=2) + b"\n"
        write_file(path, data, PUBLIC)


def _read(path: Path, kind: type[T], schema: str) -> T:
    """What ``path`` holds.

    Raises:
        BookUnusable: it is not a ``kind`` of this release.
    """
    try:
        with path.open("rb") as file:
            return decode_json(file.read(MAX_BYTES + 1), kind, schema=schema, limit=MAX_BYTES)
    except OSError as error:
        raise BookUnusable(
            f"{path}: {error.strerror}", hint="see its rights; --fleet DIR names another book"
        ) from error
    except MessageRejected as error:
        raise BookUnusable(
            f"{path}: {error}", hint="bring it back from a backup, or move it away and add the device again"
        ) from error
