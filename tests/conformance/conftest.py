"""What conformance tests share: exports kept for the session, and which runtimes can train here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from edge.contracts.errors import DeviceRefused
from edge.idle_size import measure_idle_sizes
from edge.native.build import wheel_folder
from edge.runtimes.environments import runtime_python


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts by export key: most methods ask for one that another has asked for."""
    return tmp_path_factory.mktemp("exports")


@pytest.fixture
def trains_here(request: pytest.FixtureRequest) -> None:
    """Skips where the parameter ``runtime`` of the test is not installed, and says so."""
    runtime = request.node.callspec.params["runtime"]
    if reason := _missing(runtime):
        pytest.skip(f"{runtime} is not installed here (make runtime-{runtime.replace('_', '-')}): {reason}")


@cache
def _missing(runtime: str) -> str:
    """Why nothing can be exported for ``runtime`` or trains on it here; empty when it can and does."""
    try:
        if runtime == "executorch":
            wheel_folder()
        measure_idle_sizes(runtime, python=str(runtime_python(runtime)))
    except DeviceRefused as error:
        return str(error)
    return ""
