"""Control variates on a device: what corrects the gradients, and what the steps leave; numbers by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.tensor_file import encode_tensors
from edge.training.control_variates import CorrectedWeights, NextVariates, next_variate

SENT = {
    "w": np.array([1.0, 2.0], np.float32),
    "w#control": np.array([0.5, -0.5], np.float32),
    "running_mean": np.zeros(1, np.float32),
}


def begun(folder: Path, own: bytes | None) -> CorrectedWeights:
    (folder / "weights").write_bytes(encode_tensors(SENT))
    if own is None:
        return CorrectedWeights(folder / "weights", where="here")
    (folder / "own").write_bytes(own)
    return CorrectedWeights(folder / "weights", where="here", own=folder / "own")


class Trained:
    """A session whose parameter ended at (0, 4)."""

    def read(self, name: str) -> np.ndarray:
        return {"w": np.array([0.0, 4.0], np.float32)}[name]


def test_next_variate_is_the_papers_second_option() -> None:
    """c_i+ = c_i - c + (x - y)/(K eta): c_i = 0.25, c = 1.25, x - y = 3, K eta = 4 x 0.5."""
    found = next_variate(np.array([4.0]), np.array([1.0]), np.array([1.25 - 0.25]), steps=4, lr=0.5)
    assert found.dtype == np.float32
    assert found == [0.25 - 1.25 + 1.5]


def test_correction_is_the_servers_variate_less_the_devices_own(tmp_path: Path) -> None:
    weights = begun(tmp_path, encode_tensors({"w": np.array([0.25, 0.25], np.float32)}))
    assert weights["w#correction"].tolist() == [0.25, -0.75]
    target = np.empty(2, np.float32)
    weights.copy_into("w#correction", target)
    assert target.tolist() == [0.25, -0.75]
    weights.copy_into("w", target)
    assert target.tolist() == [1.0, 2.0]
    assert "w#correction" in weights
    assert "running_mean#correction" not in weights
    assert weights.described("w#correction") == ((2,), np.dtype(np.float32))
    after = NextVariates(weights, Trained(), steps=2, lr=0.5)
    assert {name: value.tolist() for name, value in after.items()} == {"w": [0.75, -1.25]}  # (1, -2) - (0.25, -0.75)
    with pytest.raises(KeyError):
        after["running_mean"]


@pytest.mark.parametrize(
    "own",
    [
        None,
        encode_tensors({"other": np.ones(2, np.float32)}),
        encode_tensors({"w": np.ones(3, np.float32)}),
        encode_tensors({"w": np.ones(2, np.float64).astype(np.float16)}),
    ],
    ids=["none", "another name", "another shape", "another type"],
)
def test_device_without_a_variate_that_fits_begins_with_zeros(own: bytes | None, tmp_path: Path) -> None:
    assert begun(tmp_path, own)["w#correction"].tolist() == [0.5, -0.5]


def test_damaged_variates_are_seen(tmp_path: Path) -> None:
    with pytest.raises(ArtifactCorrupt, match="own control variates"):
        begun(tmp_path, b"damaged")
