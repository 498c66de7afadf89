"""CIFAR-10 from its packed JPEG bytes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coordinator.data.cifar10 import CLASSES, FILE, decoded
from coordinator.data.datasets import load_dataset
from edge.contracts.errors import DataError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def packed(images: list[Image.Image]) -> tuple[np.ndarray, np.ndarray]:
    """Lossless files one after the other, and where each begins."""
    files = []
    for image in images:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        files.append(buffer.getvalue())
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])


def colours() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)


def test_images_come_back_channels_first() -> None:
    expected = colours()
    data, offset = packed([Image.fromarray(pixels) for pixels in expected])
    images = decoded(data, offset, where="here")
    assert images.dtype == np.uint8
    assert np.array_equal(images, np.moveaxis(expected, -1, 1))


def test_packed_file_becomes_a_dataset(tmp_path: Path) -> None:
    data, offset = packed([Image.fromarray(pixels) for pixels in colours()])
    split = {"jpeg": data, "offset": offset, "y": np.array([3, 0, 9], np.uint8)}
    np.savez(tmp_path / FILE, **{f"{key}_{s}": value for s in ("train", "test") for key, value in split.items()})
    dataset = load_dataset("cifar10", tmp_path, seed=0)
    assert dataset.classes == CLASSES
    assert dataset.x_train.shape == dataset.x_test.shape == (3, 3, 32, 32)
    assert dataset.y_test.tolist() == [3, 0, 9]


@pytest.mark.parametrize("damage", ["size", "bytes", "missing"])
def test_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    if damage == "missing":
        with pytest.raises(DataError, match=FILE):
            load_dataset("cifar10", tmp_path, seed=0)
        return
    images = [Image.fromarray(pixels) for pixels in colours()]
    if damage == "size":
        images[1] = images[1].resize((16, 31))
    data, offset = packed(images)
    if damage == "bytes":
        data = data.copy()
        data[offset[1] : offset[2]] = 0
    with pytest.raises(DataError, match=r"here: image 1 (is 16x31, 32x32 expected|cannot be read)"):
        decoded(data, offset, where="here")


@pytest.mark.data
@pytest.mark.slow
def test_real_cifar10_has_the_moments_of_its_source(data_folder: Path) -> None:
    dataset = load_dataset("cifar10", data_folder, seed=0)
    assert np.bincount(dataset.y_train).tolist() == [5000] * 10
    assert np.bincount(dataset.y_test).tolist() == [1000] * 10
    assert dataset.x_train.mean((0, 2, 3)) / 255 == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)
    # JPEG smooths: published deviations are 0.2470, 0.2435, 0.2616.
    assert dataset.x_train.std((0, 2, 3)) / 255 == pytest.approx([0.2470, 0.2435, 0.2616], abs=3e-3)
