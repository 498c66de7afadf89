"""Logits and sums come back from another process as they were."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.simulation.sent_outputs import decoded_outputs, encoded_outputs
from edge.training.records import records


@pytest.mark.parametrize(
    "outputs",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
        records({"loss": np.array([0.1, 1e300]), "confusion": np.arange(8.0).reshape(2, 2, 2) / 3}, 2),
    ],
    ids=["logits", "sums"],
)
def test_bits_stay(outputs: np.ndarray) -> None:
    found = decoded_outputs(encoded_outputs(outputs))
    assert set(found.dtype.names or ()) == set(outputs.dtype.names or ())
    for name in outputs.dtype.names or [...]:
        assert found[name].dtype == outputs[name].dtype
        assert np.array_equal(found[name], outputs[name])
