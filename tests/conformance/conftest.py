"""What conformance tests share: exports kept for the session, and which runtimes can train here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
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
