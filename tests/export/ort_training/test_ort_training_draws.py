"""Dropout on ONNX Runtime Training: masks are inputs, and the step passes the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.runtime_draws import PLACES, check_draws

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


@pytest.mark.parametrize("name", PLACES)
def test_draws_pass_the_gate(name: str, tmp_path: Path) -> None:
    check_draws(name, "onnxruntime_training", tmp_path)
