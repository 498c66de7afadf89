"""What a run file asks of every placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.planning.prediction import forms_of
from export.step_form import PLAIN, StepForm

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig


@dataclass(frozen=True)
class Requests:
    """Bounds and choices of one run, the same for every device.

    Attributes:
        headroom: share of a step's growth kept free.
        forms: those a step may have, the one that should be fastest first.
        max_step_s: predicted steps that take longer are passed over; 0 = none are. Without times of a device it says
            nothing of it.
        threads: of every step; 0 = as many as are fastest on the device.
    """

    headroom: float
    forms: tuple[StepForm, ...] = (PLAIN,)
    max_step_s: float = 0.0
    threads: int = 1

    @classmethod
    def of(cls, config: RunConfig) -> Requests:
        """Those of a run file."""
        planner = config.planner
        return cls(
            headroom=planner.headroom,
            forms=forms_of(config.training.batch, micro_batches=planner.micro_batches, recompute=planner.recompute),
            max_step_s=planner.max_step_s,
            threads=config.runtime.threads,
        )
