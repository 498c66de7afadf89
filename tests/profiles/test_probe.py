"""What a probe reads on the machine at hand, on impersonated boards, and where files are missing or odd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from profiles.device import CoreGroup, DeviceProfile
from profiles.probe import heat_and_charge, probe
from profiles.system_files import MAX_BYTES, SystemFiles
from tests.profiles.boards import (
    PHONE,
    PI_3B_PLUS,
    PI_4,
    PI_5,
    PI_ZERO_2W,
    Files,
    cpuinfo,
    meminfo,
    supply,
    write_tree,
    zone,
)


def probed(root: Path, files: Files) -> DeviceProfile:
    return probe("dev-1", root=write_tree(root, files), storage=root)


def test_probe_reads_this_machine(tmp_path: Path) -> None:
    profile = probe("dev-1", budget_bytes=5, storage=tmp_path, trainer_idle_bytes={"onnxruntime": 7})
    assert (profile.device, profile.budget_bytes, profile.trainer_idle_bytes) == ("dev-1", 5, {"onnxruntime": 7})
    assert 0 < profile.free_ram_bytes <= profile.ram_bytes
    assert 1 <= profile.cpu_count <= (os.cpu_count() or 1)
    assert sum(group.count for group in profile.cores) >= profile.cpu_count
    assert profile.machine == os.uname().machine
    assert profile.python == ".".join(map(str, sys.version_info[:3]))
    assert 0 < profile.storage_free_bytes <= profile.storage_total_bytes
    assert profile.probed_at > 1_700_000_000


@pytest.mark.parametrize(
    ("files", "board", "core", "ram_kb", "mhz", "heat", "throttling"),
    [
        (PI_ZERO_2W, "Raspberry Pi Zero 2 W Rev 1.0", "Cortex-A53", 437_000, (600, 1000), 41.856, ()),
        (
            PI_3B_PLUS,
            "Raspberry Pi 3 Model B Plus Rev 1.3",
            "Cortex-A53",
            943_000,
            (1200, 1400),
            61.224,
            ("soft-temperature-limit",),
        ),
        (
            PI_4,
            "Raspberry Pi 4 Model B Rev 1.4",
            "Cortex-A72",
            3_885_000,
            (1000, 1800),
            81.305,
            ("under-voltage", "throttled"),
        ),
        (PI_5, "Raspberry Pi 5 Model B Rev 1.0", "Cortex-A76", 8_255_000, (2400, 2400), 52.35, ()),
    ],
    ids=["zero-2w", "3b-plus", "4", "5"],
)
def test_probe_of_a_raspberry_pi(
    tmp_path: Path,
    files: Files,
    board: str,
    core: str,
    ram_kb: int,
    mhz: tuple[int, int],
    heat: float,
    throttling: tuple[str, ...],
) -> None:
    profile = probed(tmp_path, files)
    assert (profile.board, profile.cpu_model, profile.machine) == (board, core, "aarch64")
    assert profile.cores == (CoreGroup(name=core, count=4, max_mhz=float(mhz[1])),)
    assert (profile.cpu_mhz, profile.cpu_max_mhz, profile.cpu_count) == (*map(float, mhz), 4)
    assert (profile.ram_bytes, profile.free_ram_bytes) == (ram_kb * 1024, ram_kb // 2 * 1024)
    assert (profile.temperature_c, profile.throttling) == (heat, throttling)
    assert (profile.battery_percent, profile.charging, profile.memory_limit_bytes) == (None, None, None)
    assert profile.os_name == "Debian GNU/Linux 12 (bookworm)"
    assert profile.system == "Linux 6.6.31+rpt-rpi-v8"
    assert profile.sources["temperature_c"] == "/sys/class/thermal/thermal_zone0/temp"
    assert profile.sources["board"] == "/proc/device-tree/model"


def test_probe_of_a_phone_has_three_kinds_of_cores_and_a_battery(tmp_path: Path) -> None:
    profile = probed(tmp_path, PHONE)
    assert profile.cores == (
        CoreGroup(name="Cortex-X1", count=2, max_mhz=2802.0),
        CoreGroup(name="Cortex-A76", count=2, max_mhz=2253.0),
        CoreGroup(name="Cortex-A55", count=4, max_mhz=1803.0),
    )
    assert (profile.cpu_count, profile.cpu_model, profile.cpu_mhz) == (8, "Cortex-X1", 1803.0)
    assert (profile.battery_percent, profile.charging) == (64.0, False)
    # A broken modem sensor, a battery and a zone at exactly 0 do not count; the fastest-named CPU zone does.
    assert profile.temperature_c == 46.0
    assert profile.throttling == ("cooling",)
    assert (profile.board, profile.os_name, profile.machine) == ("", "Android 14", "")


def test_every_value_that_was_found_names_its_source(tmp_path: Path) -> None:
    for name, files in {"pi": PI_5, "phone": PHONE}.items():
        profile = probed(tmp_path / name, files)
        empty = probed(tmp_path / f"no-{name}", {"/proc/nothing": ""})
        told = {"sources", "probed_at"}
        differing = {
            field for field in profile.__struct_fields__ if getattr(profile, field) != getattr(empty, field)
        } - told
        assert differing - set(profile.sources) == set()
        assert {field for field in profile.sources if not hasattr(profile, field)} == set()


def test_probe_of_an_empty_root_knows_nothing(tmp_path: Path) -> None:
    profile = probe("dev-1", root=tmp_path / "missing", storage=tmp_path / "missing")
    known = {
        name for name in profile.__struct_fields__ if getattr(profile, name) not in (None, "", 0, (), {}, msgspec.UNSET)
    }
    assert known == {"device", "cpu_count", "probed_at"}


ODD = ["", "\n", "\0", "x", "-1", "99999999999999999999999999", "1e9", ":", "0x", "\ufffd" * 50, "nan kB", "- - -\n:::"]


@pytest.mark.parametrize("text", ODD, ids=repr)
@pytest.mark.parametrize("board", [PI_5, PHONE], ids=["pi", "phone"])
def test_odd_files_never_raise(tmp_path: Path, board: Files, text: str) -> None:
    profile = probed(tmp_path, dict.fromkeys(board, text))
    assert profile.temperature_c is None or -40 < profile.temperature_c < 150
    assert profile.battery_percent is None or 0 <= profile.battery_percent <= 100
    assert profile.ram_bytes >= 0


def test_each_file_odd_on_its_own_spoils_no_other(tmp_path: Path) -> None:
    root = write_tree(tmp_path, PI_5)
    for path in PI_5:
        place = tmp_path / path.lstrip("/")
        sound = place.read_bytes()
        place.write_bytes(b"\xff\xfe\0")
        profile = probe("dev-1", root=root)
        place.write_bytes(sound)
        assert profile.ram_bytes == (0 if path == "/proc/meminfo" else 8_255_000 * 1024)
        assert profile.cpu_count == (1 if path == "/proc/cpuinfo" else 4)


def test_folders_in_the_place_of_files_and_unreadable_ones_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "proc/meminfo").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").symlink_to(tmp_path / "proc/cpuinfo")
    profile = probe("dev-1", root=tmp_path)
    assert (profile.ram_bytes, profile.cpu_count) == (0, 1)


def test_a_file_without_end_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    write_tree(tmp_path, {"/long": "a" * (MAX_BYTES + 5)})
    files = SystemFiles(tmp_path)
    assert (files.text("/zero"), len(files.text("/long"))) == ("", MAX_BYTES)


def test_zones_are_ordered_by_number(tmp_path: Path) -> None:
    write_tree(tmp_path, {**zone(10, "a", "1"), **zone(9, "b", "1"), **zone(1, "c", "1")})
    found = SystemFiles(tmp_path).matching("/sys/class/thermal/thermal_zone*")
    assert [path.rpartition("zone")[2] for path in found] == ["1", "9", "10"]


@pytest.mark.parametrize(("value", "degrees"), [("48500", 48.5), ("48", 48.0), ("-5000", -5.0), ("0", None)])
def test_temperature_in_thousandths_or_whole_degrees(tmp_path: Path, value: str, degrees: float | None) -> None:
    assert heat_and_charge(write_tree(tmp_path, zone(0, "cpu-thermal", value))) == (degrees, None)


def test_temperature_without_a_sensor_named_for_the_processor_is_the_hottest(tmp_path: Path) -> None:
    assert probed(tmp_path, {**zone(0, "a", "30000"), **zone(1, "b", "40000")}).temperature_c == 40.0


def test_heat_and_charge_of_a_phone(tmp_path: Path) -> None:
    assert heat_and_charge(write_tree(tmp_path, PHONE)) == (46.0, 64.0)
    assert heat_and_charge(tmp_path / "missing") == (None, None)


def test_memory_of_an_old_kernel_is_added_up(tmp_path: Path) -> None:
    old = {"/proc/meminfo": "MemTotal: 900 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 300 kB\n"}
    profile = probed(tmp_path, old)
    assert profile.free_ram_bytes == 420 * 1024
    assert profile.sources["free_ram_bytes"] == "/proc/meminfo MemFree + Buffers + Cached"


def test_memory_limit_is_the_smallest_of_the_groups_above(tmp_path: Path) -> None:
    limits = {
        "/proc/self/cgroup": "0::/user.slice/agent.service\n",
        "/sys/fs/cgroup/user.slice/memory.max": "300000000\n",
        "/sys/fs/cgroup/user.slice/agent.service/memory.max": "max\n",
    }
    profile = probed(tmp_path, {**meminfo(1000, 500), **limits})
    assert profile.memory_limit_bytes == 300_000_000
    assert profile.sources["memory_limit_bytes"] == "/sys/fs/cgroup/user.slice/memory.max"


@pytest.mark.parametrize(("limit", "expected"), [("67108864", 67_108_864), ("9223372036854771712", None)])
def test_memory_limit_of_version_1(tmp_path: Path, limit: str, expected: int | None) -> None:
    limits = {
        "/proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/agent\n",
        "/sys/fs/cgroup/memory/agent/memory.limit_in_bytes": limit,
    }
    assert probed(tmp_path, limits).memory_limit_bytes == expected


@pytest.mark.parametrize(
    ("status", "online", "charging"),
    [
        ("Charging", "1", True),
        ("Full", "0", True),
        ("Discharging", "1", False),
        ("Not charging", "1", True),
        ("Not charging", "0", False),
        ("Unknown", "", None),
    ],
)
def test_charging_from_status_else_from_the_charger(
    tmp_path: Path, status: str, online: str, charging: bool | None
) -> None:
    supplies = {
        **supply("BAT0", type="Battery", capacity="103", status=status),
        **supply("AC", type="Mains", online=online),
    }
    profile = probed(tmp_path, supplies)
    assert (profile.charging, profile.battery_percent) == (charging, 100.0)


def test_battery_of_a_mouse_is_not_the_devices(tmp_path: Path) -> None:
    profile = probed(tmp_path, supply("hid-1", type="Battery", scope="Device", capacity="12", status="Discharging"))
    assert (profile.battery_percent, profile.charging) == (None, None)


def test_unknown_processor_is_counted_without_a_name(tmp_path: Path) -> None:
    profile = probed(tmp_path, cpuinfo("0xfff", "0xfff", implementer="0x99"))
    assert (profile.cpu_model, profile.cores) == ("", (CoreGroup(name="", count=2),))


def test_probe_brings_neither_numpy_nor_psutil() -> None:
    script = (
        "import sys; from profiles.probe import probe; probe('d');"
        "print(sorted(m for m in ('numpy', 'psutil', 'torch', 'tomllib') if m in sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
