"""Federations in this process share one folder of exports."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where artifacts stay between the tests of a session."""
    return tmp_path_factory.mktemp("exports")
