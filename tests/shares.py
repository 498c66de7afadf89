"""A part of a long tier: ``--within-minutes 8 --order COMMIT`` runs what fits, in an order drawn by each commit.

Tests of what changed come first: ``--first`` names folders and files. Files stay together, so that what one of them
sets up is set up once. What does not fit is skipped, and counted as that.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection

import pytest


class Share:
    """Draws the order of the files, and ends at a time.

    Args:
        order: draws the order; the same text, the same order, in every process of a run.
        within_s: seconds from now after which no test begins.
        first: folders, whose own files are meant and not those below, and files.
    """

    def __init__(self, order: str, within_s: float, first: Collection[str] = ()) -> None:
        self._order, self._first = order, frozenset(first)
        self._minutes = within_s / 60
        self._ends = time.monotonic() + within_s

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files by the digest of the order's text and their name; within a file as before."""

        def place(item: pytest.Item) -> tuple[bool, bytes]:
            file = item.location[0]
            is_first = file in self._first or file.rpartition("/")[0] in self._first
            return not is_first, hashlib.sha256(f"{self._order} {file}".encode()).digest()

        items.sort(key=place)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Nothing is set up for a test that does not begin."""
        if time.monotonic() >= self._ends:
            pytest.skip(f"not in this commit's share of {self._minutes:g} minutes; the tier's own target runs it")
