"""Exporting for executorch needs its wheel and a C++ compiler; where one is missing these tests say so."""

from __future__ import annotations

import pytest

from edge.contracts.errors import DeviceRefused
from edge.runtimes.executorch.library import library


@pytest.fixture(autouse=True, scope="session")
def executorch_installed() -> None:
    """Skips where the session library cannot be had; it is built here once, so that no test pays for it.

    The exporter is imported here, too: it warns as it is imported, and a warning that a test takes for an error would
    leave it half imported for all that follow.
    """
    pytest.importorskip("ruamel.yaml", reason="the executorch exporter imports ruamel.yaml: make setup")
    pytest.importorskip("executorch.exir", reason="the executorch exporter: make setup")
    try:
        library()
    except DeviceRefused as error:
        pytest.skip(str(error))
