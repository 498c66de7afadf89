"""ONNX Runtime Training has an environment of its own; without it these tests say so."""

from __future__ import annotations

import pytest

from edge.contracts.errors import ConfigError
from export.formats.ort_training.environment import RuntimeEnvironment


@pytest.fixture(autouse=True, scope="session")
def runtime_environment() -> None:
    """Skips where the environment is not there."""
    try:
        RuntimeEnvironment().close()
    except ConfigError as error:
        pytest.skip(f"onnxruntime-training is not installed here: {error.hint}")
