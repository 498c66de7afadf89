"""Where arrays lie in an npz file, against what NumPy reads from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.flat_orders.archives import stored_arrays
from edge.flat_orders.writing import Unable

VALUES = {
    "float32": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "float64": np.linspace(-1, 1, 6).reshape(3, 2),
    "int64": np.arange(3),
    "int32": np.arange(3, dtype=np.int32),
    "uint8": np.arange(24, dtype=np.uint8).reshape(3, 2, 4),
    "int8": np.arange(-1, 2, dtype=np.int8),
    "bool": np.array([True, False, True]),
}


def test_stored_arrays_are_ranges_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "part.npz"
    np.savez(path, **VALUES)
    data, found = path.read_bytes(), stored_arrays(path)
    assert found.keys() == VALUES.keys()
    for name, value in VALUES.items():
        stored = found[name]
        assert (stored.dtype, stored.shape) == (name, value.shape)
        assert data[stored.offset : stored.offset + value.nbytes] == value.tobytes()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"x": np.asfortranarray(np.zeros((3, 2)))}, "Fortran's order"),
        ({"x": np.array(["cat", "dog"])}, "of type <U3"),
        ({"x": np.zeros(3, ">f4")}, "of type >f4"),
        ({"x": np.zeros(3, np.float16)}, "of type <f2"),
    ],
)
def test_arrays_of_another_kind_are_left_to_the_other_trainer(
    values: dict[str, np.ndarray], reason: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "part.npz", **values)
    with pytest.raises(Unable, match=reason):
        stored_arrays(tmp_path / "part.npz")


def test_compressed_arrays_are_left_to_the_other_trainer(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "part.npz", x=np.zeros((100, 2)))
    with pytest.raises(Unable, match=r"array 'x' in .* is compressed"):
        stored_arrays(tmp_path / "part.npz")


@pytest.mark.parametrize("kept", [0, 10, 100, -1])
def test_damaged_files_are_left_to_the_other_trainer(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "part.npz"
    np.savez(path, x=np.zeros((3, 2)))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Unable, match=r"part\.npz"):
        stored_arrays(path)


def test_object_arrays_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "part.npz", x=np.array([{}, {}], dtype=object))
    with pytest.raises(Unable, match=r"of type \|O"):
        stored_arrays(tmp_path / "part.npz")
