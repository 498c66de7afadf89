"""Federations in this process share one folder of exports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.contracts.errors import DeviceRefused
from edge.measuring.idle_size import measure_idle_sizes
from edge.runtimes.environments import runtime_python
from edge.runtimes.executorch.build import wheel_folder
from tests.remembered_exports import runs_share


@pytest.fixture(autouse=True, scope="package")
def shared_exports(exports: Path) -> Iterator[None]:
    """All runs here take from ``exports`` what another test's run has exported."""
    with runs_share(exports):
        yield


@pytest.fixture(scope="session")
def executorch() -> str:
    """The name of that runtime; skips where artifacts for it cannot be made, or no trainer with it starts."""
    try:
        wheel_folder()
    except DeviceRefused as error:
        pytest.skip(f"executorch is not installed here (make runtime-executorch, and g++): {error}")
    return _startable("executorch")


@pytest.fixture(scope="session")
def onnxruntime_training() -> str:
    """The name of that runtime; skips where no trainer with it starts, nor then its exporter."""
    return _startable("onnxruntime_training")


def _startable(runtime: str) -> str:
    try:
        measure_idle_sizes(runtime, python=str(runtime_python(runtime)))
    except DeviceRefused as error:
        pytest.skip(f"{runtime} is not installed here (make runtime-{runtime.replace('_', '-')}): {error}")
    return runtime
