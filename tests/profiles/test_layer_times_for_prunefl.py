"""Layer times of a fit are what PruneFL's time model takes, in its own terms and as options of a run file."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.pruning.time_model import TimeModel
from profiles.latency import fit_layer_times

SIZES = {"conv.weight": 400, "fc.weight": 6000}
PER_WEIGHT_S = {"conv.weight": 4e-4, "fc.weight": 2e-6}


def test_layer_times_predict_a_round_of_masks() -> None:
    draw = np.random.default_rng(0)
    counts = [{name: int(draw.integers(1, size)) for name, size in SIZES.items()} for _ in range(9)]
    fit = fit_layer_times(
        (kept, 0.5 + sum(PER_WEIGHT_S[name] * count for name, count in kept.items())) for kept in counts
    )
    masks = {name: np.arange(size) < size // 3 for name, size in SIZES.items()}
    kept = {name: int(mask.sum()) for name, mask in masks.items()}
    model = TimeModel(fit.constant_s, fit.weight_s)
    assert model.round_s(masks) == pytest.approx(fit.seconds(kept)) == pytest.approx(0.5 + 133 * 4e-4 + 2000 * 2e-6)
    options = fit.options(list(SIZES))
    assert options["constant-s"] == pytest.approx(0.5)
    assert options["layer-s"] == pytest.approx([4e-4, 2e-6])
