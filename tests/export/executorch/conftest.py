"""Exporting for executorch needs its wheel and a C++ compiler; where one is missing these tests say so."""

from __future__ import annotations

import pytest

from edge.contracts.errors import DeviceRefused
from edge.runtimes.executorch.library import library


@pytest.fixture(autouse=True, scope="session")
def executorch_installed() -> None:
    """Skips where the session library cannot be had; it is built here once, so that no test pays for it."""
    pytest.importorskip("ruamel.yaml", reason="the executorch exporter imports ruamel.yaml: make setup")
    try:
        library()
    except DeviceRefused as error:
        pytest.skip(str(error))
