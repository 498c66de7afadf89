"""A part of a long tier: ``--within-minutes 8 --order COMMIT`` runs what fits, in an order drawn by each commit.

Files stay together, so that what one of them sets up is set up once. What does not fit is skipped, and counted as that.
"""

from __future__ import annotations

import hashlib
import time

import pytest


class Share:
    """Draws the order of the files, and ends at a time.

    Args:
        order: draws the order; the same text, the same order, in every process of a run.
        within_s: seconds from now after which no test begins.
    """

    def __init__(self, order: str, within_s: float) -> None:
        self._order = order
        self._minutes = within_s / 60
        self._ends = time.monotonic() + within_s

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files by the digest of the order's text and their name; within a file as before."""
        items.sort(key=lambda item: hashlib.sha256(f"{self._order} {item.location[0]}".encode()).digest())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Nothing is set up for a test that does not begin."""
        if time.monotonic() >= self._ends:
            pytest.skip(f"not in this commit's share of {self._minutes:g} minutes; the tier's own target runs it")
