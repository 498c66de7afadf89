"""What a device tells about a finished assignment: results, time, memory, bytes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edge.contracts.evaluation import Evaluation
from edge.contracts.plan import BlobRef
from profiles.bounds import AFew, Amount, Count, Degrees, Examples, Name, Processors, Result, Size

NATIVE = "native"
"""What a report calls a trainer without Python."""


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
        evaluation: sums over the held-out share of the model that was received, where the order asked; a report without
            any is written without the field.
        cpu_s: processor time of the trainer for this order, all threads; an older agent's report has no such field.
        trainer: ``native`` where a trainer without Python carried the order out; another's report has no such field.
        joules: of the whole board, or of its processor, in that time; only where something counts them.
    """

    assignment_id: Name
    device: Name
    round: Count
    num_examples: Examples
    steps: Count
    loss: Result
    metrics: Annotated[dict[Name, Result], AFew]
    step_ms_p50: Amount
    step_ms_p95: Amount
    trainer_peak_bytes: Size
    supervisor_peak_bytes: Size
    trainer_idle_bytes: Size
    budget_bytes: Size
    over_budget: bool
    torch_loaded: bool
    runtime: Name
    bytes_down: Count
    bytes_up: Count
    update: BlobRef
    wall_s: Amount
    temperature_c: Degrees | None = None
    battery_percent: Degrees | None = None
    threads: Processors = 0
    labels: tuple[Count, ...] | None = None
    site_devices: Count = 0
    evaluation: Evaluation | msgspec.UnsetType = msgspec.UNSET
    cpu_s: Amount | msgspec.UnsetType = msgspec.UNSET
    joules: Amount | msgspec.UnsetType = msgspec.UNSET
    trainer: Name | msgspec.UnsetType = msgspec.UNSET

    @property
    def scores(self) -> Evaluation | None:
        """:attr:`evaluation`, if there is one."""
        return None if self.evaluation is msgspec.UNSET else self.evaluation

    @property
    def processor_s(self) -> float | None:
        """:attr:`cpu_s`, where it was measured."""
        return None if self.cpu_s is msgspec.UNSET else self.cpu_s

    @property
    def trainer_kind(self) -> str:
        """:attr:`trainer`, ``python`` where it is not said."""
        return "python" if self.trainer is msgspec.UNSET else self.trainer

    @property
    def energy_j(self) -> float | None:
        """:attr:`joules`, where something counts them."""
        return None if self.joules is msgspec.UNSET else self.joules
