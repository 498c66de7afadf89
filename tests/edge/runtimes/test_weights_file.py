"""Weights as a mapping: the values of the file, copied whole into buffers, and errors of a file that is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.weights_file import WeightsFile


def test_copy_into_gives_every_byte_of_tensors_beyond_one_chunk(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    tensors = {
        "big": generator.standard_normal((700, 1000)).astype(np.float32),
        "count": np.array(7, np.int64),
        "odd": generator.standard_normal(3).astype(np.float32),
    }
    path = tmp_path / "weights"
    path.write_bytes(encode_tensors(tensors))
    weights = WeightsFile(path, where="round 1")
    assert sorted(weights) == ["big", "count", "odd"]
    for _ in range(2):  # pages given back are read again from the file
        for name, expected in tensors.items():
            target = np.zeros(expected.shape, expected.dtype)
            weights.copy_into(name, target)
            np.testing.assert_array_equal(target, expected)
            np.testing.assert_array_equal(weights[name], expected)


@pytest.mark.parametrize("data", [b"", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"])
def test_weights_file_refuses_what_is_no_tensor_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "weights"
    path.write_bytes(data)
    with pytest.raises(ArtifactCorrupt, match="round 1"):
        WeightsFile(path, where="round 1")
