"""When a device waits, and meters read from the kernel."""

from __future__ import annotations

import numpy as np
import pytest

from edge.conditions import waiting_reason
from edge.meter import peak_rss_bytes, percentile, rss_bytes
from profiles.device import DeviceProfile

PROFILE = DeviceProfile(device="d", free_ram_bytes=100_000_000, storage_free_bytes=10**10)


@pytest.mark.parametrize(("needed", "held", "waits"), [(0, 0, False), (90, 0, False), (110, 0, True), (110, 20, False)])
def test_waiting_for_memory_counts_what_is_held_already(needed: int, held: int, waits: bool) -> None:
    reason = waiting_reason(PROFILE, needed_bytes=needed * 10**6, held_bytes=held * 10**6)
    assert bool(reason) == waits
    if waits:
        assert "100 MB of memory are free" in reason


def test_waiting_for_storage() -> None:
    full = DeviceProfile(device="d", free_ram_bytes=10**9, storage_free_bytes=10**6)
    assert "storage" in waiting_reason(full, needed_bytes=0)


def test_meter_sees_memory_that_is_touched() -> None:
    before, block = peak_rss_bytes(), np.ones(80_000_000, np.uint8)
    assert peak_rss_bytes() >= rss_bytes() > 80_000_000
    assert peak_rss_bytes() >= before
    assert block[0] == 1


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.95)) == (50.0, 95.0)
    assert percentile([7.0], 0.95) == 7.0
    assert percentile([], 0.5) == 0.0
