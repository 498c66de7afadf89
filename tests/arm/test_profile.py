"""``apportion profile`` on emulated processors whose ``/proc`` and ``/sys`` are those of a board."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.arm.boards import PATIENCE_S, write_sysroot
from tests.arm.userland import EMULATOR, Userland
from tests.profiles.boards import PI_3B_PLUS, PI_4, PI_5, PI_ZERO_2W

BOARDS = {
    "pi-zero-2w": ("cortex-a53", PI_ZERO_2W, "Cortex-A53", 41.856, []),
    "pi-3b-plus": ("cortex-a53", PI_3B_PLUS, "Cortex-A53", 61.224, ["soft-temperature-limit"]),
    "pi-4-4gb": ("cortex-a72", PI_4, "Cortex-A72", 81.305, ["under-voltage", "throttled"]),
    "pi-5-8gb": ("cortex-a76", PI_5, "Cortex-A76", 52.35, []),
}


@pytest.mark.parametrize("name", BOARDS)
def test_profile_of_an_emulated_board_is_its_files(userland: Userland, tmp_path: Path, name: str) -> None:
    processor, files, core, heat, throttling = BOARDS[name]
    write_sysroot(tmp_path, userland.root, files)
    done = subprocess.run(
        [EMULATOR, "-cpu", processor, "-L", str(tmp_path), str(userland.python), "-m", "edge", "profile", "--json"],
        env={"PATH": "/usr/bin", "LANG": "C.UTF-8", "HOME": "/"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    profile = told["profile"]
    assert told["known_as"] == name
    assert (profile["machine"], profile["cpu_model"]) == ("aarch64", core)
    assert profile["board"] == files["/proc/device-tree/model"].rstrip("\0")
    assert (profile["temperature_c"], profile["throttling"]) == (heat, throttling)
    assert f"MemTotal:       {profile['ram_bytes'] // 1024} kB" in files["/proc/meminfo"]
    assert [group["count"] for group in profile["cores"]] == [4]
    assert profile["sources"]["temperature_c"] == "/sys/class/thermal/thermal_zone0/temp"
