"""The export side of executorch is an extra; without it these tests say so."""

from __future__ import annotations

import importlib.util

import pytest

from edge.contracts.errors import DeviceRefused
from edge.native.build import wheel_folder


@pytest.fixture(autouse=True, scope="session")
def executorch_installed() -> None:
    """Skips where the extra is not installed."""
    try:
        wheel_folder()
    except DeviceRefused:
        pytest.skip("executorch is not installed here: pip install 'apportion[executorch]'")
    assert importlib.util.find_spec("torch") is not None
