"""Whether a shared measurement can be true: bounds that any device keeps. It finds slips and jokes, no clever liar."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from edge.runtimes import RUNTIMES
from edge.sharing.measurement import SharedMeasurement, SharedRow

FASTEST_GMAC_PER_S = 2_000.0
"""10^9 forward multiply-accumulates per second of a whole training step, with all threads; a desktop has a tenth."""

SLOWEST_STEP_MS = 3_600_000.0
HOTTEST_C = 150.0
LEAST_STEPS = 3
FIRST_DAY = "2025-01-01"
_VERSION = re.compile(r"\d+(\.\d+){1,3}([a-z0-9.+-]{0,20})?")


def implausible(shared: SharedMeasurement, *, today: str = "") -> Iterator[str]:
    """What cannot be, a line each.

    Args:
        today: ``2026-11-25``; this day where it is empty.
    """
    device = shared.device
    today = today or time.strftime("%Y-%m-%d", time.gmtime(time.time() + 86_400))  # somewhere it is tomorrow already
    if not FIRST_DAY <= shared.measured_on <= today:
        yield f"measured_on is {shared.measured_on}: not between {FIRST_DAY} and {today}"
    for what, version in (("release", shared.release), ("python", device.python)):
        if version and not _VERSION.fullmatch(version):
            yield f"{what} is {version!r}: no version"
    if not (256 << 20) <= device.ram_bytes <= (4 << 40):
        yield f"ram_bytes is {device.ram_bytes}: not between 256 MiB and 4 TiB"
    if not device.machine or not sum(group.count for group in device.cores):
        yield "machine and cores: one of them is missing"
    seen = set()
    for number, row in enumerate(shared.rows):
        for problem in _of_row(row, shared):
            yield f"rows[{number}] ({row.shape}, batch {row.batch}, {row.threads} threads): {problem}"
        identity = (row.digest, row.runtime_version, row.batch, row.threads)
        if identity in seen:
            yield f"rows[{number}]: the same setting twice"
        seen.add(identity)


def _of_row(row: SharedRow, shared: SharedMeasurement) -> Iterator[str]:
    cores = sum(group.count for group in shared.device.cores)
    if row.runtime not in RUNTIMES:
        yield f"runtime {row.runtime!r} is not known"
    if not _VERSION.fullmatch(row.runtime_version):
        yield f"runtime_version {row.runtime_version!r} is no version"
    if row.threads > max(1, cores):
        yield f"{row.threads} threads on {cores} cores"
    if row.hottest_c is not None and not -40 <= row.hottest_c <= HOTTEST_C:
        yield f"hottest_c is {row.hottest_c}"
    if row.peak_bytes > shared.device.ram_bytes:
        yield f"peak_bytes {row.peak_bytes} is more than the memory of the device"
    if row.outcome == "killed":
        return
    if row.steps < LEAST_STEPS:
        yield f"{row.steps} steps, at least {LEAST_STEPS} are timed"
    if not 0 < row.step_ms_p50 <= row.step_ms_p95 <= SLOWEST_STEP_MS:
        yield f"step_ms_p50 {row.step_ms_p50} and p95 {row.step_ms_p95}: above 0, rising, an hour at most"
    elif row.macs * row.batch / row.step_ms_p50 / 1e6 > FASTEST_GMAC_PER_S:
        yield f"{row.step_ms_p50} ms for {row.macs} x {row.batch} multiply-accumulates: faster than any device"
    if not 0 < row.idle_bytes <= row.peak_bytes:
        yield f"idle_bytes {row.idle_bytes} and peak_bytes {row.peak_bytes}: above 0, rising"
    if row.cpu_share > 1.2:
        yield f"cpu_share is {row.cpu_share}: more than a thread has"
