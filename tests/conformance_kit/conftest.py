"""The command in this process, as the command line's own tests have it; and the kit's artifacts, exported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import command

__all__ = ["command"]


@pytest.fixture(scope="session")
def kit_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for :attr:`coordinator.conformance.KitOptions.artifacts`."""
    return tmp_path_factory.mktemp("kit-artifacts")
