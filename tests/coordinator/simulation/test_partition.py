"""Dealing examples to devices: every example once, the same again, as skewed as asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.simulation.partition import partition
from edge.contracts.errors import ConfigError

LABELS = np.repeat(np.arange(5), 200)[np.random.default_rng(0).permutation(1000)]
OWNERS = np.random.default_rng(1).integers(0, 12, 1000)


def skew(shares: list[np.ndarray]) -> float:
    """Mean share of a device's most frequent class: 0.2 when even, 1 for one class each."""
    return float(np.mean([np.bincount(LABELS[share]).max() / len(share) for share in shares]))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}),
    ("dirichlet", {"alpha": 0.5}),
    ("dirichlet", {"alpha": 0.01}),
    ("dirichlet", {"alpha": 0.05, "minimum": 40}),
    ("dirichlet", {"alpha": 0.1, "equal": True}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("devices", [1, 7, 12])
def test_every_example_is_dealt_once_in_order(kind: str, options: dict[str, Any], devices: int) -> None:
    shares = partition(kind, LABELS, devices, seed=3, **options)
    assert len(shares) == devices
    assert all(share.dtype == np.int64 and (np.diff(share) > 0).all() and len(share) > 0 for share in shares)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(1000))


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_seed_decides_and_nothing_else(kind: str, options: dict[str, Any]) -> None:
    first, again, other = (partition(kind, LABELS, 7, seed=seed, **options) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_shares_are_of_equal_size_and_even() -> None:
    shares = partition("iid", LABELS, 7, seed=0)
    assert {len(share) for share in shares} == {142, 143}
    assert skew(shares) < 0.3


def test_smaller_alpha_is_more_skewed() -> None:
    skews = [skew(partition("dirichlet", LABELS, 10, seed=0, alpha=alpha)) for alpha in (100.0, 0.5, 0.02)]
    assert skews == sorted(skews)
    assert skews[0] < 0.35
    assert skews[2] > 0.75


def test_minimum_is_kept_by_taking_from_the_richest() -> None:
    without = partition("dirichlet", LABELS, 12, seed=5, alpha=0.02)
    assert min(map(len, without)) < 30
    assert min(map(len, partition("dirichlet", LABELS, 12, seed=5, alpha=0.02, minimum=30))) == 30


def test_equal_shares_are_equal_and_still_skewed() -> None:
    shares = partition("dirichlet", LABELS, 8, seed=0, alpha=0.05, equal=True)
    assert {len(share) for share in shares} == {125}
    assert skew(shares) > 0.6


@pytest.mark.parametrize("devices", [1, 5, 12])
def test_each_device_gets_one_writer_lowest_ids_first(devices: int) -> None:
    shares = partition("writer", LABELS, devices, seed=0, owners=OWNERS + 40)
    assert [set((OWNERS[share] + 40).tolist()) for share in shares] == [{40 + device} for device in range(devices)]
    assert [len(share) for share in shares] == np.bincount(OWNERS)[:devices].tolist()


@pytest.mark.parametrize(
    ("kind", "devices", "options", "words"),
    [
        ("random", 2, {}, ["$.data.partition", "'random'", "iid, dirichlet, writer"]),
        ("iid", 0, {}, ["$.cohort.local", "0 devices"]),
        ("iid", 1001, {}, ["$.data", "1000 examples", "1001 devices"]),
        ("dirichlet", 10, {"minimum": 101}, ["$.data", "101"]),
        ("dirichlet", 10, {"alpha": 0.0}, ["$.data.alpha", "0.0"]),
        ("dirichlet", 10, {"alpha": float("nan")}, ["$.data.alpha", "nan"]),
        ("writer", 3, {}, ["$.data.partition", "iid or dirichlet"]),
        ("writer", 13, {"owners": OWNERS}, ["12 writers", "13 devices"]),
    ],
)
def test_impossible_partition_is_refused(kind: str, devices: int, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        partition(kind, LABELS, devices, seed=0, **options)
    assert all(word in str(caught.value) for word in words)
