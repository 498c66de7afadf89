"""Local data: every source, and a clear reason for everything that cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge.contracts.errors import DataError
from edge.training.local_data import read_local_data


def images(folder: Path, *, classes: tuple[str, ...] = ("cat", "dog"), size: tuple[int, int] = (4, 4)) -> Path:
    for index, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", size, (index * 100, number, 7)).save(folder / name / f"{number}.png")
    return folder


def test_local_data_npz_folder_is_joined_in_name_order(tmp_path: Path) -> None:
    for name, value in (("b", 2.0), ("a", 1.0)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((2, 3), value), y=[0, 1])
    data = read_local_data(str(tmp_path))
    assert isinstance(data.x, np.ndarray)
    assert data.x[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert data.y.tolist() == [0, 1, 0, 1]


def test_local_data_csv_takes_the_label_column(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("a,label,b\n1,0,2\n\n3,1,4.5\n")
    data = read_local_data(str(tmp_path))
    assert isinstance(data.x, np.ndarray)
    assert data.x.tolist() == [[1.0, 2.0], [3.0, 4.5]]
    assert data.y.tolist() == [0, 1]


def test_local_data_csv_without_label_column_takes_the_last_and_may_name_classes(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("a,b\n1,cat\n3,dog\n")
    data = read_local_data(str(path))
    assert data.y.tolist() == ["cat", "dog"]


def test_local_data_images_are_labelled_by_folder(tmp_path: Path) -> None:
    data = read_local_data(str(images(tmp_path)))
    assert data.y.tolist() == ["cat", "cat", "dog", "dog"]
    assert len(data.x) == 4


def test_local_data_function_gives_x_and_y(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data_source.py").write_text("def load():\n    return [[1.0], [2.0]], [0, 1]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(read_local_data("my_data_source:load")) == 2
    sys.modules.pop("my_data_source")


def corrupt_npz(folder: Path) -> str:
    np.savez(folder / "good.npz", x=np.zeros((2, 2)), y=[0, 1])
    (folder / "bad.npz").write_bytes((folder / "good.npz").read_bytes()[:150])
    return str(folder)


def flipped_npz(folder: Path) -> str:
    np.savez(folder / "bad.npz", x=np.arange(400.0), y=np.zeros(400))
    data = bytearray((folder / "bad.npz").read_bytes())
    data[600] ^= 1
    (folder / "bad.npz").write_bytes(data)
    return str(folder)


def pickled_npz(folder: Path) -> str:
    np.savez(folder / "bad.npz", x=np.array([{"a": 1}], dtype=object), y=[0])
    return str(folder)


def keyless_npz(folder: Path) -> str:
    np.savez(folder / "bad.npz", data=np.zeros(3))
    return str(folder)


def uneven_npz(folder: Path) -> str:
    np.savez(folder / "bad.npz", x=np.zeros((3, 2)), y=[0])
    return str(folder)


def bad_csv(folder: Path) -> str:
    (folder / "bad.csv").write_text("a,label\n1,0\nx,1\n")
    return str(folder)


def ragged_csv(folder: Path) -> str:
    (folder / "bad.csv").write_text("a,label\n1,0,5\n")
    return str(folder)


def bad_image(folder: Path) -> str:
    images(folder)
    (folder / "cat" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    return str(folder)


@pytest.mark.parametrize(
    "make", [corrupt_npz, flipped_npz, pickled_npz, keyless_npz, uneven_npz, bad_csv, ragged_csv, bad_image]
)
def test_local_data_bad_file_is_named(tmp_path: Path, make: object) -> None:
    with pytest.raises(DataError, match=r"bad\.(npz|csv|png)"):
        read_local_data(make(tmp_path))  # type: ignore[operator]


def test_local_data_csv_error_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 3"):
        read_local_data(bad_csv(tmp_path))


@pytest.mark.parametrize("source", ["/nowhere/at/all", "no.such.module:function"])
def test_local_data_missing_source_is_named(source: str) -> None:
    with pytest.raises(DataError, match=source.split(":")[0]):
        read_local_data(source)


def test_local_data_empty_folder_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="npz"):
        read_local_data(str(tmp_path))
