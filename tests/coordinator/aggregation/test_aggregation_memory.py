"""Memory of a sum and of every rule: that of a few models, for ten devices and for a hundred and fifty."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from coordinator.aggregation import spilled_values
from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.choice import chosen_rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.config.aggregation import AggregationConfig

pytestmark = pytest.mark.slow

SIZE = 20_000
MODEL_BYTES = 4 * SIZE


def peak_bytes(rule: Rule, devices: int) -> int:
    """The most that adding ``devices`` updates and the result take at once, the model itself apart."""
    before = {"w": np.zeros((200, SIZE // 200), np.float32)}
    update = {"w": np.ones((200, SIZE // 200), np.float32)}
    tracemalloc.start()
    try:
        accumulator = rule(before)
        for number in range(devices):
            accumulator.add(update, 1.0, where=str(number))
        accumulator.result()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["weighted_mean", "entrywise", "median", "trimmed_mean", "norm_clip"])
def test_memory_is_that_of_a_few_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled_values, "TILE_BYTES", MODEL_BYTES)
    rule: Rule
    if name == "entrywise":
        rule = EntrywiseMean
    elif name == "weighted_mean":
        rule = WeightedMean  # type: ignore[assignment]
    else:
        found = chosen_rule(AggregationConfig(rule=name), tmp_path)
        assert found is not None
        rule = found
    peak_bytes(rule, 3)  # what is imported at the first use is no array
    few, many = peak_bytes(rule, 10), peak_bytes(rule, 150)
    # Records of where a hundred and fifty updates lie are the only thing that grows.
    assert many < few + 150 * 2_000
    assert few < 14 * MODEL_BYTES
