"""Halved images: means of 2x2 pixels, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.half_size_cifar10 import halved, load
from edge.contracts.errors import DataError


def test_pixels_are_means_of_four() -> None:
    images = np.array([[[[0, 4, 10, 10], [8, 4, 10, 11], [255, 255, 1, 1], [255, 255, 1, 3]]]], np.uint8)
    # 41/4 = 10.25 and 6/4 = 1.5, which rounds to the even 2.
    assert halved(images).tolist() == [[[[4, 10], [255, 2]]]]
    assert halved(images).dtype == np.uint8


def test_missing_images_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"cifar10_jpeg\.npz: no such file"):
        load(tmp_path)
    monkeypatch.delenv("APPORTION_DATA", raising=False)
    with pytest.raises(DataError, match="set APPORTION_DATA"):
        load()
