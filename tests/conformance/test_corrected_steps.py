"""SCAFFOLD's corrections in the steps of devices, beside the simulation's on every runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.runtimes import RUNTIMES
from tests.conformance.method_runs import CASES, run_config
from tests.conformance.test_method_steps import check
from tests.coordinator.simulation.small_simulation import changed

pytestmark = [pytest.mark.slow, pytest.mark.runtime]


@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize(
    ("name", "runtime"), [*(("fedavg", runtime) for runtime in RUNTIMES), ("adapter", "onnxruntime")]
)
def test_three_corrected_steps_are_those_of_the_simulation(
    name: str, runtime: str, tmp_path: Path, exports: Path
) -> None:
    config = run_config(CASES[name], tmp_path, runtime=runtime, lines="steps = 3")
    config = changed(config, training={"momentum": 0.0, "scaffold": True})
    assert check(config, runtime, tmp_path, exports) >= 1
