"""The mean of a site's updates, by hand; its memory does not grow with the devices."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from edge.contracts.tensor_file import encode_tensors
from edge.relay.site_sum import mean_update


def write(folder: Path, name: str, **tensors: np.ndarray) -> Path:
    path = folder / name
    path.write_bytes(encode_tensors(tensors))
    return path


def test_mean_is_weighted_by_examples_and_whole_numbers_are_rounded(tmp_path: Path) -> None:
    one = write(tmp_path, "a", w=np.asarray([1.0, 2.0], np.float32), n=np.asarray(3, np.int64))
    two = write(tmp_path, "b", w=np.asarray([4.0, -2.0], np.float32), n=np.asarray(4, np.int64))
    mean = mean_update([(one, 1), (two, 3)])
    assert mean["w"].tolist() == [(1 + 12) / 4, (2 - 6) / 4]
    assert (mean["n"].tolist(), mean["n"].dtype, mean["n"].shape) == (4, np.int64, ())  # (3 + 12) / 4 = 3.75


def test_mean_is_summed_in_float64(tmp_path: Path) -> None:
    large, small = np.float32(2.0**24), np.float32(1.0)
    paths = [write(tmp_path, f"d{i}", w=np.asarray([value])) for i, value in enumerate([large, small, small, small])]
    # In float32 2^24 + 1 is 2^24 again: the three ones would be lost.
    assert mean_update([(path, 1) for path in paths])["w"].tolist() == [np.float32((2.0**24 + 3) / 4)]


def test_means_of_sites_make_the_mean_of_all_devices(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=500).astype(np.float32) for _ in range(6)]
    devices = [(write(tmp_path, f"d{i}", w=value), int(rng.integers(1, 90))) for i, value in enumerate(values)]
    direct = mean_update(devices)["w"]
    sites = []
    for index, half in enumerate((devices[:3], devices[3:])):
        sites.append((write(tmp_path, f"s{index}", **mean_update(half)), sum(examples for _, examples in half)))
    # Rounded to float32 once at the site and once at the end: half a unit in the last place each.
    assert mean_update(sites)["w"] == pytest.approx(direct, rel=2.5e-7, abs=1e-7)


def test_memory_of_the_mean_does_not_grow_with_the_devices(tmp_path: Path) -> None:
    size = 250_000
    paths = [write(tmp_path, f"d{i}", w=np.full(size, i, np.float32)) for i in range(12)]
    peaks = []
    for count in (2, 12):
        tracemalloc.start()
        mean_update([(path, 1) for path in paths[:count]])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0] + 50_000
    assert peaks[1] <= 3.2 * size * 8  # the sum and two passing copies in float64
