"""A profile kept in a file: one JSON file per device, with the date and the method it was found by.

Written beside the old one and moved over it, so that a reader sees the old or the new one and never half of either.
Fields this release does not know are ignored; another version of the whole is refused.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec

from profiles.device import DeviceProfile

SCHEMA = "apportion.device-profile/1"
MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ProfileUnusable(ValueError):
    """A profile's file, or a catalog's, that cannot be read or written as one; the text names it and the next step."""


class StoredProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds.

    Attributes:
        stored_at: seconds since 1970.
        method: how the profile was found: ``probe``, ``datasheet``, or a measurement's name.
    """

    schema: str = SCHEMA
    stored_at: float
    method: str
    profile: DeviceProfile


def profile_path(folder: Path, device: str) -> Path:
    """Where the profile of ``device`` is kept.

    Raises:
        ProfileUnusable: the device's name can name no file.
    """
    if not _NAME.fullmatch(device) or ".." in device:
        raise ProfileUnusable(
            f"device {device[:80]!r} cannot name a file: use 1 to 64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return folder / f"{device}.json"


def store_profile(folder: Path, profile: DeviceProfile, *, method: str, now: float | None = None) -> Path:
    """The file that now holds ``profile``; ``folder`` is made when it is missing.

    Raises:
        ProfileUnusable: as :func:`profile_path`.
        OSError: the disk is full, or the folder cannot be written.
    """
    path = profile_path(folder, profile.device)
    stored = StoredProfile(stored_at=time.time() if now is None else now, method=method, profile=profile)
    return write_whole(path, msgspec.json.format(msgspec.json.encode(stored, order="deterministic"), indent=2) + b"\n")


def write_whole(path: Path, data: bytes) -> Path:
    """``path``, which now has ``data`` on the disk, or after a failure what it had; its folder is made when missing.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    folder_handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder_handle)
    finally:
        os.close(folder_handle)
    return path


def read_profile(path: Path) -> StoredProfile:
    """The stored profile.

    Raises:
        ProfileUnusable: there is none, it is of another version, or it is not one.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileUnusable(f"{path}: {error.strerror}; probe the device again") from error
    if len(data) > MAX_BYTES:
        raise ProfileUnusable(f"{path}: over {MAX_BYTES} bytes, which no profile has; probe the device again")
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema != SCHEMA:
            raise ProfileUnusable(f"{path}: schema {schema!r}, this release reads {SCHEMA!r}; upgrade, or probe again")
        return msgspec.json.decode(data, type=StoredProfile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileUnusable(f"{path}: {error}; probe the device again") from error


def read_profiles(folder: Path) -> dict[str, StoredProfile]:
    """Device -> stored profile, of every file in ``folder``.

    Raises:
        ProfileUnusable: one of them cannot be read, or is stored under another device's name.
    """
    found = {path.stem: (path, read_profile(path)) for path in sorted(folder.glob("[!.]*.json"))}
    for name, (path, stored) in found.items():
        if stored.profile.device != name:
            raise ProfileUnusable(f"{path}: is the profile of {stored.profile.device!r}; rename it to that")
    return {name: stored for name, (_, stored) in found.items()}


class _Head(msgspec.Struct):
    schema: str = ""
