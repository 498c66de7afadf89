"""Ceilings in force on this machine, and the control files of machines written by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.local_devices import control_groups
from coordinator.local_devices.ceilings import DataLimit, describe, open_ceiling
from coordinator.local_devices.control_groups import ControlGroup, Limits, control_group, remove_group, remove_leftovers
from edge.contracts.errors import ConfigError

MB = 2**20
FILL = "import sys; block = bytearray(int(sys.argv[1]) << 20); block[::4096] = b'1' * len(block[::4096]); print('done')"


@pytest.fixture
def small() -> Iterator[ControlGroup]:
    """A group of 64 MB and a quarter of a core; skips where none can be made."""
    try:
        group = control_group(f"apportion-{os.getpid()}-test", Limits(64 * MB, 0.25))
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    yield group
    group.close()
    assert not any(folder.exists() for folder in group.folders)


def run_below(ceiling: ControlGroup | DataLimit, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ceiling.command([sys.executable, "-c", *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_ceiling_kill_by_the_limit_is_counted(small: ControlGroup) -> None:
    assert run_below(small, FILL, "8").stdout == "done\n"
    assert small.report().kills == 0
    assert run_below(small, FILL, "200").returncode == -9
    report = small.report()
    assert report.kills == 1
    assert 8 * MB < report.peak_bytes <= 64 * MB


def test_ceiling_bounds_the_sum_of_parent_and_child(small: ControlGroup) -> None:
    """40 MB each: either alone would fit."""
    parent = (
        "import subprocess, sys; block = bytearray(40 << 20); block[::4096] = b'1' * len(block[::4096])\n"
        "child = 'block = bytearray(40 << 20); block[::4096] = b\"1\" * len(block[::4096])'\n"
        "sys.exit(7 if subprocess.run([sys.executable, '-c', child]).returncode == -9 else 0)"
    )
    assert run_below(small, parent).returncode in (7, -9)  # the kernel takes whichever is larger
    assert small.report().kills == 1


def test_ceiling_share_of_a_core_slows_down(small: ControlGroup) -> None:
    busy = "import time\nwhile time.process_time() < 0.25: pass"
    started = time.monotonic()
    assert run_below(small, busy).returncode == 0
    assert time.monotonic() - started > 0.25 / 0.25 * 0.7


def test_leftovers_of_a_dead_coordinator_are_removed(small: ControlGroup) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = control_group(f"apportion-{ended.pid}-device-00", Limits(32 * MB))
    assert left.memory is not None
    assert left.memory.is_dir()
    assert f"apportion-{ended.pid}-device-00" in remove_leftovers()
    assert not left.memory.exists()
    assert small.memory is not None
    assert small.memory.exists()


def test_group_with_a_process_in_it_is_removed_with_it(small: ControlGroup) -> None:
    child = subprocess.Popen(small.command([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]),
                             stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    assert small.memory is not None
    assert remove_group(small.memory)
    assert child.wait(10) == -9
    child.stdout.close()


def test_data_limit_makes_allocations_fail() -> None:
    ceiling = DataLimit(Limits(64 * MB))
    assert run_below(ceiling, FILL, "8").stdout == "done\n"
    done = run_below(ceiling, FILL, "200")
    assert done.returncode == 1
    assert "MemoryError" in done.stderr
    report = ceiling.report()
    assert (report.kind, report.kills) == ("prlimit", None)
    assert "each process alone" in describe([report])


def write(root: Path, path: str, text: str = "") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_version_2_writes_limits_below_the_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain files in place of a kernel's: only what is written where is looked at."""
    monkeypatch.setattr(control_groups, "_require_entry", lambda folder: None)
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/app\n")
    for folder in ("", "user.slice/", "user.slice/app/"):
        write(tmp_path, f"sys/fs/cgroup/{folder}cgroup.procs")
        write(tmp_path, f"sys/fs/cgroup/{folder}cgroup.controllers", "cpu memory pids\n")
    subtree = write(tmp_path, "sys/fs/cgroup/user.slice/app/cgroup.subtree_control", "memory\n")
    group = control_group("apportion-1-device-00", Limits(96 * MB, 0.5), root=tmp_path)
    assert group.folders == (tmp_path / "sys/fs/cgroup/user.slice/app/apportion-1-device-00",)
    assert subtree.read_text() == "+cpu"
    written = {name: (group.folders[0] / name).read_text() for name in ("memory.max", "memory.swap.max", "cpu.max")}
    assert written == {"memory.max": str(96 * MB), "memory.swap.max": "0", "cpu.max": "50000 100000"}
    (group.folders[0] / "memory.events").write_text("low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n")
    (group.folders[0] / "memory.peak").write_text(f"{90 * MB}\n")
    assert (group.report().kind, group.report().kills, group.report().peak_bytes) == ("cgroup v2", 2, 90 * MB)


def test_machine_without_groups_falls_back_to_prlimit(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    assert isinstance(open_ceiling("device-00", Limits(96 * MB), root=tmp_path), DataLimit)


def test_machine_without_groups_refuses_a_share_of_a_core(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cpu-share 0\.25 for device-00, but no control group can be made here"):
        open_ceiling("device-00", Limits(96 * MB, 0.25), root=tmp_path)
