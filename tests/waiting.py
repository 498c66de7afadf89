"""Waiting for what another thread or process does, and no longer than that takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], what: str = "it", within_s: float = 20.0) -> float:
    """Seconds until ``is_so()``.

    Raises:
        AssertionError: it did not come in ``within_s``.
    """
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < within_s, f"{what} did not come within {within_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - began
