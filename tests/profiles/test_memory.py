"""Memory prediction by hand."""

from __future__ import annotations

import pytest

from profiles.memory import CORRECTION_RANGE, SUPERVISOR_TRANSFER_BYTES, fit_correction, predict_process_peak


def test_predict_process_peak_is_the_sum_of_both_processes() -> None:
    peak = predict_process_peak(
        supervisor_idle_bytes=27_000_000, trainer_idle_bytes=50_000_000, artifact_peak_bytes=100
    )
    assert peak == 27_000_000 + SUPERVISOR_TRANSFER_BYTES + 50_000_000 + 100


def test_predict_process_peak_corrects_growth_only() -> None:
    sizes = {"supervisor_idle_bytes": 10, "trainer_idle_bytes": 20}
    doubled = predict_process_peak(**sizes, artifact_peak_bytes=1000, factor=2.0)
    assert doubled - predict_process_peak(**sizes, artifact_peak_bytes=1000) == 1000


@pytest.mark.parametrize(
    ("samples", "factor"),
    [
        ([], 1.0),
        ([(100, 120), (100, 90)], 1.2),
        ([(100, 80)], 0.8),
        ([(100, 1)], CORRECTION_RANGE[0]),
        ([(1, 1000)], CORRECTION_RANGE[1]),
        ([(0, 50), (100, 0)], 1.0),
    ],
)
def test_fit_correction_covers_every_sample(samples: list[tuple[int, int]], factor: float) -> None:
    assert fit_correction(samples) == pytest.approx(factor)
