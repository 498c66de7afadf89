"""Dropout on ExecuTorch: masks are inputs, and the step passes the gate."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from export.formats.executorch_program.format import ExecutorchProgram
from tests.export.runtime_draws import PLACES, check_draws
from tests.export.test_draws import STEP, around

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


@pytest.mark.parametrize("name", PLACES)
def test_draws_pass_the_gate(name: str, tmp_path: Path) -> None:
    check_draws(name, "executorch", tmp_path)


def test_the_prediction_counts_the_masks() -> None:
    plain, dropped = (
        ExecutorchProgram().write(around(layer), STEP).memory.batch for layer in (nn.Identity(), nn.Dropout(0.5))
    )
    assert dropped == plain + 8 * 6
