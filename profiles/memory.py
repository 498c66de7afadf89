"""What an assignment will take on a device: the sum of both processes' peaks, predicted and corrected by measurements.

Pure functions. Budgets and ceilings always mean the sum of supervisor and trainer.
"""

from __future__ import annotations

from collections.abc import Iterable

SUPERVISOR_TRANSFER_BYTES = 4 << 20
"""What a supervisor grows by while it moves blocks, reads a manifest and writes its report. Source: measured."""

CORRECTION_RANGE = (0.5, 3.0)
"""A measured factor outside says that something else is wrong; the prediction is not stretched further."""


def predict_process_peak(
    *, supervisor_idle_bytes: int, trainer_idle_bytes: int, artifact_peak_bytes: int, factor: float = 1.0
) -> int:
    """Bytes that supervisor and trainer reach together.

    Args:
        artifact_peak_bytes: ``cost.predicted_peak_bytes`` of the artifact, the trainer's growth above idle.
        factor: from :func:`fit_correction`, multiplies that growth only.
    """
    growth = round(artifact_peak_bytes * factor)
    return supervisor_idle_bytes + SUPERVISOR_TRANSFER_BYTES + trainer_idle_bytes + growth


def fit_correction(samples: Iterable[tuple[int, int]]) -> float:
    """The factor on predicted growth that would have covered every sample, within :data:`CORRECTION_RANGE`.

    The largest ratio and not a mean: a cut that is slightly too small costs a little accuracy, one that is too large
    costs the device.

    Args:
        samples: (predicted growth, measured trainer peak minus trainer idle), bytes.
    """
    ratios = [measured / predicted for predicted, measured in samples if predicted > 0 and measured > 0]
    if not ratios:
        return 1.0
    low, high = CORRECTION_RANGE
    return min(high, max(low, max(ratios)))
