"""Nothing of a tracker's package is loaded by a run that names none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coordinator.tracking import TRACKERS

PACKAGES = ("tensorboard", "mlflow", "wandb", "prometheus_client", "opentelemetry")


@pytest.mark.slow
def test_a_run_without_trackers_loads_none() -> None:
    script = (
        "import sys\n"
        "import coordinator.tracking.tracked_run, coordinator.rounds.tracked_rounds, coordinator.run_file.loading\n"
        f"print(*[name for name in {PACKAGES!r} if name in sys.modules])\n"
        "print(*[name for name in sys.modules if name.startswith('coordinator.tracking.')])\n"
    )
    loaded, ours = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert loaded == ""
    assert not {target.partition(":")[0] for target in TRACKERS.values()} & set(ours.split())
