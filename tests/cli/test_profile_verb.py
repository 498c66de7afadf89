"""``apportion profile``: this machine, a device of the catalog, the catalog, and files."""

from __future__ import annotations

import os
from pathlib import Path

from profiles.known_devices import known_names
from profiles.stored_profile import read_profile
from tests.cli.conftest import Command


def test_profile_of_this_machine_names_its_sources(command: Command) -> None:
    line = command("profile", "--json").line
    assert (line["schema"], line["ok"], line["method"]) == ("apportion.profile/1", True, "probe")
    assert line["profile"]["machine"] == os.uname().machine
    assert line["profile"]["sources"]["ram_bytes"] == "/proc/meminfo MemTotal"
    shown = command("profile")
    assert shown.status == 0
    assert "/proc/meminfo MemTotal" in shown.out


def test_profile_of_a_known_device_is_kept_as_a_file(command: Command, tmp_path: Path) -> None:
    line = command("profile", "pi-5-8gb", "--store", tmp_path / "devices", "--name", "pi-07", "--json").line
    assert (line["method"], line["known_as"]) == ("datasheet", "pi-5-8gb")
    stored = read_profile(Path(line["stored"]))
    assert (stored.method, stored.profile.device, stored.profile.ram_bytes) == ("datasheet", "pi-07", 8 * 2**30)
    shown = command("profile", "pi-5-8gb")
    assert "4 x Cortex-A76 2400 MHz" in shown.out
    assert "not known      clock now, memory free" in shown.out


def test_profile_list_is_the_catalog(command: Command) -> None:
    line = command("profile", "--list", "--json").line
    assert [device["name"] for device in line["devices"]] == list(known_names())
    assert {device["figures"] for device in line["devices"]} == {"datasheet"}
    assert len(command("profile", "--list").out.splitlines()) == len(known_names())


def test_profile_of_an_unknown_device_is_exit_2_with_the_known_ones(command: Command) -> None:
    outcome = command("profile", "pi-9", "--json")
    assert outcome.status == 2
    assert "'pi-9' is not in the catalog; it has fairphone-4" in outcome.error["message"]


def test_profile_under_a_name_that_names_no_file_is_exit_2(command: Command, tmp_path: Path) -> None:
    outcome = command("profile", "--store", tmp_path, "--name", "../x", "--json")
    assert outcome.status == 2
    assert "cannot name a file" in outcome.error["message"]
    assert list(tmp_path.iterdir()) == []
