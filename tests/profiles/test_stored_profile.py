"""Profiles in files: read back as they were, refused by version, never half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles import stored_profile
from profiles.device import DeviceProfile
from profiles.probe import probe
from profiles.stored_profile import (
    MAX_BYTES,
    SCHEMA,
    ProfileUnusable,
    read_profile,
    read_profiles,
    store_profile,
)
from tests.profiles.boards import PI_5, write_tree

PROFILE = DeviceProfile(device="pi-07", ram_bytes=5, temperature_c=41.5, throttling=(), trainer_idle_bytes={"a": 1})


def changed(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return path


def test_a_probed_profile_is_read_back_as_it_was(tmp_path: Path) -> None:
    profile = probe("pi-5", root=write_tree(tmp_path / "root", PI_5))
    stored = read_profile(store_profile(tmp_path / "new/folder", profile, method="probe", now=1.5))
    assert (stored.profile, stored.method, stored.stored_at, stored.schema) == (profile, "probe", 1.5, SCHEMA)


def test_storing_again_replaces_and_leaves_one_file(tmp_path: Path) -> None:
    store_profile(tmp_path, PROFILE, method="datasheet", now=1.0)
    store_profile(tmp_path, DeviceProfile(device="pi-07", ram_bytes=9), method="probe")
    assert [path.name for path in tmp_path.iterdir()] == ["pi-07.json"]
    stored = read_profiles(tmp_path)["pi-07"]
    assert (stored.method, stored.profile.ram_bytes) == ("probe", 9)
    assert stored.stored_at > 1_700_000_000


def test_a_write_that_fails_leaves_the_old_profile_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_profile(tmp_path, PROFILE, method="probe")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored_profile.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store_profile(tmp_path, DeviceProfile(device="pi-07", ram_bytes=9), method="probe")
    assert [path.name for path in tmp_path.iterdir()] == ["pi-07.json"]
    assert read_profile(tmp_path / "pi-07.json").profile == PROFILE


def test_unknown_fields_are_ignored_and_missing_ones_take_their_defaults(tmp_path: Path) -> None:
    path = changed(store_profile(tmp_path, PROFILE, method="probe"), colour="red", profile={"device": "x", "moons": 2})
    assert read_profile(path).profile == DeviceProfile(device="x")


@pytest.mark.parametrize("schema", ["apportion.device-profile/2", "apportion.bench/1", ""])
def test_another_version_is_refused(tmp_path: Path, schema: str) -> None:
    path = changed(store_profile(tmp_path, PROFILE, method="probe"), schema=schema)
    with pytest.raises(ProfileUnusable, match=rf"pi-07.json: schema '{schema}', this release reads '{SCHEMA}'"):
        read_profile(path)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 5000, b'{"schema": "apportion.device-profile/1"}', b"null"]
)
def test_what_is_no_profile_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "pi.json").write_bytes(data)
    with pytest.raises(ProfileUnusable, match=r"pi\.json: .*probe"):
        read_profile(tmp_path / "pi.json")


def test_a_missing_file_and_one_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileUnusable, match=r"none\.json: No such file"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "pi.json").write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ProfileUnusable, match="over 1048576 bytes"):
        read_profile(tmp_path / "pi.json")


@pytest.mark.parametrize("device", ["", "../pi", "a/b", ".hidden", "a..b", "x" * 65])
def test_a_name_that_can_name_no_file_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(ProfileUnusable, match="cannot name a file"):
        store_profile(tmp_path, DeviceProfile(device=device), method="probe")
    assert list(tmp_path.iterdir()) == []


def test_a_renamed_file_is_refused(tmp_path: Path) -> None:
    store_profile(tmp_path, PROFILE, method="probe").rename(tmp_path / "pi-08.json")
    with pytest.raises(ProfileUnusable, match=r"pi-08\.json: is the profile of 'pi-07'"):
        read_profiles(tmp_path)
