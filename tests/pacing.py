"""A test without a mark for it is quick: with ``--limit-s 2`` one that takes longer fails, and says what to do.

What is set up once for many tests does not count, nor do the moments in which another process had the processor.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MARK = "slow"
_SCHEDULER = Path("/proc/thread-self/schedstat")
_NEEDED = pytest.StashKey[float]()


def _runnable_s() -> float:
    """Seconds that this thread has waited for a processor, as the kernel counts them; 0 where it does not."""
    try:
        return int(_SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _now() -> float:
    return time.perf_counter() - _runnable_s()


class Pacing:
    """Measures every test, its own fixtures included.

    Args:
        limit_s: the most an unmarked test may take.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._shared_s = 0.0
        self._depth = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Takes the time of fixtures that other tests use too."""
        is_shared = fixturedef.scope != "function"
        began, self._depth = _now(), self._depth + is_shared
        try:
            return (yield)
        finally:
            self._depth -= is_shared
            if is_shared and not self._depth:
                self._shared_s += _now() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """The time a test needs begins here."""
        self._shared_s, began = 0.0, _now()
        yield
        item.stash[_NEEDED] = _now() - began - self._shared_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """It ends here; the test has passed."""
        self._shared_s, began = 0.0, _now()
        yield
        needed = item.stash.get(_NEEDED, 0.0) + _now() - began - self._shared_s
        if needed > self._limit_s and item.get_closest_marker(MARK) is None:
            pytest.fail(
                f"passed, but took {needed:.1f} s, and a test without a mark may take {self._limit_s:g} s: make it "
                "quicker, or mark it slow (its own tier)",
                pytrace=False,
            )
