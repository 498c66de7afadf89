"""What a device's owner shares of its measurement: what the device is, and the time and memory of training steps.

Only these fields, each with its bounds: what is not here cannot leave. Nothing names the device, its owner or its
place, and numbers that would tell two devices of a kind apart are rounded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from edge.contracts.release import RELEASE
from edge.measuring.results import LadderRow
from profiles.bounds import MOST_PROCESSORS, AFew, Amount, Count, Degrees, Name, Size
from profiles.device import CoreGroup, DeviceProfile
from profiles.known_devices import recognise

SCHEMA = "apportion.shared-measurement/1"
MEMORY_STEP_BYTES = 16 << 20
"""Memory of a machine is rounded to this: what its firmware keeps for itself differs from board to board."""

MOST_ROWS = 1000
Threads = Annotated[int, msgspec.Meta(ge=1, le=MOST_PROCESSORS)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Date = Annotated[str, msgspec.Meta(pattern=r"^20\d\d-[01]\d-[0-3]\d$")]


class SharedDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the device is.

    Attributes:
        known_as: its name in the catalog; empty: it is not there.
        ram_bytes: rounded to :data:`MEMORY_STEP_BYTES`.
        kernel: kind and first two numbers of the release, ``Linux 6.6``.
    """

    known_as: Name = ""
    board: Name = ""
    cpu_model: Name = ""
    cores: Annotated[tuple[CoreGroup, ...], AFew] = ()
    machine: Name = ""
    ram_bytes: Size = 0
    kernel: Name = ""
    os_name: Name = ""
    python: Name = ""


class SharedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training step that was measured, or for which the memory was not enough.

    Attributes:
        digest: of the artifact's manifest: two rows with the same one ran the same graph.
        outcome: ``killed``: it ended for its memory.
        step_ms_p50, step_ms_p95: 0 unless measured.
        idle_bytes, peak_bytes: of the trainer, before the artifact and at most.
        cpu_share: processor time per thread and second; well below 1 with one thread, others used the processor.
        hottest_c: before or after; None without a sensor.
    """

    shape: Name
    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    runtime: Name
    runtime_version: Name
    batch: Batch
    threads: Threads
    parameters: Count
    macs: Count
    predicted_bytes: Size
    outcome: Literal["measured", "killed"]
    steps: Count
    step_ms_p50: Amount
    step_ms_p95: Amount
    idle_bytes: Size
    peak_bytes: Size
    cpu_share: Annotated[float, msgspec.Meta(ge=0.0, le=1000.0)]
    hottest_c: Degrees | None = None
    throttling: Annotated[tuple[Name, ...], AFew] | None = None


class SharedMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole.

    Attributes:
        release: of this project, that measured.
        measured_on: the day of the last measurement, UTC.
    """

    release: Name
    measured_on: Date
    device: SharedDevice
    rows: Annotated[tuple[SharedRow, ...], msgspec.Meta(min_length=1, max_length=MOST_ROWS)]


def shared_measurement(profile: DeviceProfile, rows: Sequence[LadderRow]) -> SharedMeasurement:
    """What may be shared of ``profile`` and ``rows``, those that were measured or killed.

    Raises:
        ValueError: there is no such row.
    """
    told = [_row(row) for row in rows if row.outcome in ("measured", "killed")]
    if not any(row.outcome == "measured" for row in told):
        raise ValueError("no step was measured; measure at least one rung of the ladder")
    known = recognise(profile)
    kind, _, release = profile.system.partition(" ")
    last = max(row.measured_at for row in rows)
    return SharedMeasurement(
        release=RELEASE,
        measured_on=time.strftime("%Y-%m-%d", time.gmtime(last)),
        device=SharedDevice(
            known_as="" if known is None else known.name,
            board=profile.board,
            cpu_model=profile.cpu_model,
            cores=profile.cores,
            machine=profile.machine,
            ram_bytes=round(profile.ram_bytes / MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES,
            # What follows the numbers is the builder's to choose, a host's or a person's name among it.
            kernel=" ".join(filter(None, (kind, ".".join(release.split("-")[0].split("+")[0].split(".")[:2])))),
            os_name=profile.os_name,
            python=profile.python,
        ),
        rows=tuple(told),
    )


def _row(row: LadderRow) -> SharedRow:
    heats = [heat for heat in row.heat_c if heat is not None]
    return SharedRow(
        shape=row.shape,
        digest=row.digest,
        runtime=row.runtime,
        runtime_version=row.runtime_version,
        batch=row.batch,
        threads=row.threads,
        parameters=row.parameters,
        macs=row.macs,
        predicted_bytes=row.predicted_bytes,
        outcome="measured" if row.outcome == "measured" else "killed",
        steps=row.steps,
        step_ms_p50=round(row.step_ms_p50, 3),
        step_ms_p95=round(row.step_ms_p95, 3),
        idle_bytes=row.idle_bytes,
        peak_bytes=row.peak_bytes,
        cpu_share=round(row.cpu_share, 3),
        hottest_c=round(max(heats), 1) if heats else None,
        throttling=row.throttling,
    )
