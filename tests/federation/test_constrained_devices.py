"""Real agents below ceilings the kernel enforces: "512 MB, slow"; too small for any cut; killed at its limit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices import processes as local_devices
from coordinator.local_devices.ceilings import Ceiling, open_ceiling
from coordinator.local_devices.control_groups import Limits, control_group
from coordinator.planning.planner import MB
from coordinator.run_file.loading import load_config_text
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.broker, pytest.mark.runtime]

GROUPS = """
[[cohort.local]]
count = 2
budget-mb = 512
ceiling = "budget"
cpu-share = 0.5

[[cohort.local]]
count = 1
budget-mb = 64
ceiling = "budget"

[[cohort.local]]
count = 1
budget-mb = 300
ceiling = "budget"
"""

# Other programs of the device's owner take what no profile told of, each less than a trainer: the kernel chooses that.
OTHER_PROGRAMS = """
import os, sys, time
for _ in range(8):
    ready, told = os.pipe()
    if os.fork() == 0:
        block = bytearray(32 << 20)
        block[::4096] = b"1" * len(block[::4096])
        os.write(told, b"1")
        time.sleep(60)
    os.read(ready, 1)
print("there", flush=True)
time.sleep(60)
"""


class Crowded:
    """Starts the other programs below the ceiling of ``device`` once the round is planned."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._ceilings: dict[str, Ceiling] = {}
        self.program: subprocess.Popen[bytes] | None = None

    def open_ceiling(self, name: str, limits: Limits) -> Ceiling:
        self._ceilings[name] = open_ceiling(name, limits)
        return self._ceilings[name]

    def on_point(self, name: str) -> None:
        if name == "planned":
            command = self._ceilings[self._device].command([sys.executable, "-c", OTHER_PROGRAMS])
            self.program = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert self.program.stdout is not None
            assert self.program.stdout.readline() == b"there\n"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("constrained") / "run"


@pytest.fixture(scope="module")
def summary(run_dir: Path) -> Iterator[dict[str, Any]]:
    """What one round of four devices leaves; skips where control groups cannot be made."""
    try:
        control_group("apportion-1-probe", Limits(64 * MB, 0.5)).close()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    text = config_text(rounds=1, local=0, size=4, min_reports=2)
    for old, new in (
        ("hidden = [96, 96]", "hidden = [1400, 1400]"),  # 26 MB of step, which the crowded device no longer has
        ('name = "fedhm"\nlevels = [4]', 'name = "fedavg"'),
        ("frobenius-lambda = 0.0001", ""),
        ("[runtime]", f"{GROUPS}\n[runtime]"),
    ):
        assert old in text
        text = text.replace(old, new)
    crowded = Crowded("device-03")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_devices, "open_ceiling", crowded.open_ceiling)
        options = RunOptions(quiet=True, on_point=crowded.on_point)
        yield start_run(load_config_text(text), run_dir, options)
    assert crowded.program is not None
    assert crowded.program.wait(10) == -9  # ended with its group
    assert crowded.program.stdout is not None
    crowded.program.stdout.close()


@pytest.mark.slow
def test_constrained_slow_devices_train_below_their_ceilings(summary: dict[str, Any]) -> None:
    assert [row["device"] for row in summary["device_table"]] == ["device-00", "device-01"]
    for row in summary["device_table"]:
        ceiling = summary["ceilings"][row["device"]]
        assert (ceiling["limit_bytes"], ceiling["cpu_share"], ceiling["kills"]) == (512 * MB, 0.5, 0)
        assert 0 < row["measured_peak_bytes"] <= 512 * MB


def test_constrained_device_too_small_for_any_cut_is_left_out_not_killed(summary: dict[str, Any]) -> None:
    assert summary["ceilings"]["device-02"]["limit_bytes"] == 64 * MB
    assert summary["ceilings"]["device-02"]["kills"] == 0


def test_constrained_trainer_killed_at_its_limit_is_counted(summary: dict[str, Any], run_dir: Path) -> None:
    killed = summary["ceilings"]["device-03"]
    assert killed["kills"] >= 1
    assert killed["peak_bytes"] <= 300 * MB
    assert summary["memory_kills"] == killed["kills"]
    assert "SIGKILL (killed, perhaps out of memory)" in (run_dir / "devices/device-03/agent.log").read_text()


def test_constrained_order_that_was_killed_is_not_begun_again(summary: dict[str, Any], run_dir: Path) -> None:
    """The kernel counted it, the agent refused at once, and the ledger keeps what it had and what there is."""
    log = (run_dir / "devices/device-03/agent.log").read_text()
    assert "it is not begun again" in log
    assert "starting the order again" not in log
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        (setback,) = ledger.measurements.setbacks()
    assert (setback.device, setback.code, setback.limit_bytes) == ("device-03", "out-of-memory", 300 * MB)
    assert 40 * MB < setback.peak_bytes <= 300 * MB
