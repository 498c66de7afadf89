"""Parameter groups in the steps of devices: beside the simulation's on every runtime, and in every kind of cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.runtimes import RUNTIMES
from tests.conformance.method_runs import CASES, LINES, run_config
from tests.conformance.test_method_steps import check

GROUPS = f"""{LINES}
[[training.groups]]
match = "*.bias"
weight-decay = 0
[[training.groups]]
match = "8.*"
lr-factor = 3
weight-decay = 0.01
"""
PAIRS = [("fedavg", runtime) for runtime in RUNTIMES] + [(case, "onnxruntime") for case in ("fedhm", "fjord")]
"""Every runtime in one method, and kinds of cuts whose parameters are not the whole model's."""


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize(("name", "runtime"), PAIRS)
def test_three_steps_with_groups_are_those_of_the_simulation(
    name: str, runtime: str, tmp_path: Path, exports: Path
) -> None:
    config = run_config(CASES[name], tmp_path, runtime=runtime, lines=GROUPS)
    assert check(config, runtime, tmp_path, exports) >= 1
