"""What a device tells about a finished assignment: results, time, memory, bytes."""

from __future__ import annotations

import msgspec

from edge.contracts.plan import BlobRef


class TrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one assignment; the update itself travels as blocks under ``update.digest``.

    Attributes:
        num_examples: local examples the update stands for (FedAvg's weight).
        loss: mean training loss over all steps.
        metrics: further means (``accuracy``).
        trainer_peak_bytes, supervisor_peak_bytes: peak RSS of each process; the budget holds for their sum.
        trainer_idle_bytes: trainer RSS with its runtime loaded, before the artifact.
        over_budget: the sum of both peaks is above ``budget_bytes``.
        torch_loaded: torch was imported in either process; false on any sound device.
        threads: threads the steps ran on, fewer than ordered where runtime or owner allow fewer; 0: not said.
        wall_s: from the order's acceptance to this report.
        site_devices: devices that the update is the mean of, of a relay; 0: the device's own.
        labels: classes the device has examples of, rising; None unless the order asked.
    """

    assignment_id: str
    device: str
    round: int
    num_examples: int
    steps: int
    loss: float
    metrics: dict[str, float]
    step_ms_p50: float
    step_ms_p95: float
    trainer_peak_bytes: int
    supervisor_peak_bytes: int
    trainer_idle_bytes: int
    budget_bytes: int
    over_budget: bool
    torch_loaded: bool
    runtime: str
    bytes_down: int
    bytes_up: int
    update: BlobRef
    wall_s: float
    temperature_c: float | None = None
    battery_percent: float | None = None
    threads: int = 0
    labels: tuple[int, ...] | None = None
    site_devices: int = 0
