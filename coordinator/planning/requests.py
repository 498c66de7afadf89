"""What a run file asks of every placement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coordinator.planning.prediction import forms_of
from export.forms.step_form import PLAIN, StepForm

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from profiles.device import DeviceProfile

STORAGE_MARGIN_BYTES = 48 << 20
"""Beside a base: what a device's store leaves free, and room for graphs and updates."""


@dataclass(frozen=True)
class Requests:
    """Bounds and choices of one run, the same for every device.

    Attributes:
        headroom: share of a step's growth kept free.
        forms: those a step may have, the one that should be fastest first.
        max_step_s: predicted steps that take longer are passed over; 0 = none are. Without times of a device it says
            nothing of it.
        threads: of every step; 0 = as many as are fastest on the device.
        windows: of a language model, in symbols, for devices that no level fits with the run's own; longest first.
        bases: precisions that a device's base may have and the bytes of each, in order of preference; ``""`` is the
            run's. Empty: the model has no base.
    """

    headroom: float
    forms: tuple[StepForm, ...] = (PLAIN,)
    max_step_s: float = 0.0
    threads: int = 1
    windows: tuple[int, ...] = ()
    bases: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, config: RunConfig, bases: tuple[tuple[str, int], ...] = ()) -> Requests:
        """Those of a run file.

        Args:
            bases: as :func:`coordinator.exporting.model_form.base_choices` gives them.
        """
        planner = config.planner
        return cls(
            headroom=planner.headroom,
            forms=forms_of(
                config.training.batch,
                micro_batches=planner.micro_batches,
                recompute=planner.recompute and not bases,  # a language model's step always does
                float16_activations=planner.float16_activations and not bases,
            ),
            windows=planner.windows,
            bases=bases,
            max_step_s=planner.max_step_s,
            threads=config.runtime.threads,
        )

    def base_for(self, profile: DeviceProfile) -> tuple[str, int]:
        """The base that the device is given, and its bytes: the first that its storage has room for, else the smallest.

        A device that has one already may have no room for another: it says so itself. Empty, 0: the run's, or none.
        """
        if not self.bases:
            return "", 0
        free = profile.storage_free_bytes
        fitting = [base for base in self.bases if not free or base[1] + STORAGE_MARGIN_BYTES <= free]
        return fitting[0] if fitting else min(self.bases, key=lambda base: base[1])

    def searches(self, profile: DeviceProfile) -> list[tuple[StepForm, ...]]:
        """The forms to try on all levels, then on all levels again with shorter windows, the longest first."""
        base, _ = self.base_for(profile)
        return [tuple(replace(form, window=window, base=base) for form in self.forms) for window in (0, *self.windows)]
