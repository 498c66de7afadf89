"""Rows of a mapped table by the numbers of a batch: what a session feeds in the table's stead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.contracts.errors import DeviceRefused
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import TensorSpec
from edge.runtimes.mapped_rows import row_values, rows_of
from edge.runtimes.weights_file import WeightsFile

TABLE = np.arange(60, dtype=np.int8).reshape(20, 3)
SCALE = np.linspace(1, 2, 20, dtype=np.float32)
PLACES = {"x": np.array([[3, 19, 3], [0, -100, 7]])}


@pytest.fixture
def base(tmp_path: Path) -> WeightsFile:
    (tmp_path / "base").write_bytes(encode_tensors({"t": TABLE, "t#scale": SCALE, "other": np.ones(5, np.float32)}))
    return WeightsFile(tmp_path / "base", where="base")


def test_rows_of_a_file_are_those_of_the_array(base: WeightsFile) -> None:
    expected = np.maximum(PLACES["x"], 0)
    specs = [
        TensorSpec("t#rows:x", ("batch", 3, 3), "int8", "rows"),
        TensorSpec("t#scale#rows:x", ("batch", 3), "float32", "rows"),
    ]
    found = row_values(specs, base, PLACES)
    np.testing.assert_array_equal(found["t#rows:x"], TABLE[expected])
    np.testing.assert_array_equal(found["t#scale#rows:x"], SCALE[expected])
    assert (found["t#rows:x"].dtype, found["t#rows:x"].shape) == (np.int8, (2, 3, 3))
    for name, value in row_values(specs, {"t": TABLE, "t#scale": SCALE}, PLACES).items():
        np.testing.assert_array_equal(value, found[name])


def test_file_may_be_replaced_while_it_is_read(base: WeightsFile, tmp_path: Path) -> None:
    (tmp_path / "base").unlink()
    np.testing.assert_array_equal(rows_of("t#rows:x", base, PLACES), TABLE[np.maximum(PLACES["x"], 0)])


def test_symbol_that_the_model_does_not_know_is_refused(base: WeightsFile) -> None:
    with pytest.raises(DeviceRefused, match="'x' has symbol 20, the model knows 0 to 19; use the tokenizer"):
        rows_of("t#rows:x", base, {"x": np.array([20])})
