"""Dealing examples to devices: every example once, the same again, as skewed as asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.data.partition import partition
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
    ("file-order", {}),
    ("dirichlet-equal", {"alpha": 0.1}),
    ("dirichlet-groups", {"alpha": 0.5}),
    ("dirichlet-multinomial", {"alpha": 0.1}),
]
DRAWN = [(kind, options) for kind, options in CASES if kind != "file-order"]
EQUAL = ["iid", "file-order", "dirichlet-equal", "dirichlet-groups", "dirichlet-multinomial"]


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("devices", [1, 7, 12])
def test_every_example_is_dealt_once_in_order(kind: str, options: dict[str, Any], devices: int) -> None:
    shares = partition(kind, LABELS, devices, seed=3, **options)
    assert len(shares) == devices
    assert all(share.dtype == np.int64 and (np.diff(share) > 0).all() and len(share) > 0 for share in shares)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(1000))


@pytest.mark.parametrize(("kind", "options"), DRAWN)
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


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize("devices", [8, 23])
def test_shares_of_equal_size(kind: str, devices: int) -> None:
    sizes = {len(share) for share in partition(kind, LABELS, devices, seed=0, alpha=0.3)}
    assert sizes == ({125} if devices == 8 else {43, 44})


@pytest.mark.parametrize("kind", [kind for kind in EQUAL if kind.startswith("dirichlet")])
def test_smaller_alpha_is_more_skewed_at_equal_sizes(kind: str) -> None:
    skews = [skew(partition(kind, LABELS, 10, seed=0, alpha=alpha)) for alpha in (100.0, 0.5, 0.1)]
    assert skews == sorted(skews)
    assert skews[0] < 0.35
    assert skews[2] > 0.5


def test_file_order_is_consecutive_slices() -> None:
    shares = partition("file-order", LABELS, 3, seed=9)
    assert [(share[0], share[-1], len(share)) for share in shares] == [(0, 333, 334), (334, 666, 333), (667, 999, 333)]


def test_each_device_draws_its_own_mix_of_classes() -> None:
    # alpha so small that a draw is one class: five classes of 200 for ten devices of 100 must all be used up.
    shares = partition("dirichlet-equal", LABELS, 10, seed=0, alpha=1e-3)
    assert {len(share) for share in shares} == {100}
    assert sum(len(np.unique(LABELS[share])) == 1 for share in shares) >= 4


def test_groups_of_ten_share_nothing_but_what_a_slice_moves() -> None:
    # Two groups of ten over halves of a shuffle; every device within half of a fair share of 50 before the slices.
    shares = partition("dirichlet-groups", LABELS, 20, seed=1, alpha=0.2)
    half = np.sort(np.concatenate(shares[:10]))
    assert len(half) == 500
    # A half of the shuffle holds about half of every class, whatever its devices drew.
    assert np.bincount(LABELS[half]).min() > 80
    assert skew(shares) > 0.45


def test_groups_that_stay_uneven_are_refused_with_the_number() -> None:
    one_class = np.zeros(100, int)
    with pytest.raises(ConfigError, match=r"\$\.data\.alpha: 1e-06 gave no split of 100 examples"):
        partition("dirichlet-groups", one_class, 10, seed=0, alpha=1e-6)


def test_multinomial_is_one_draw_per_class_over_all_devices() -> None:
    shares = partition("dirichlet-multinomial", LABELS, 4, seed=2, alpha=1e-3)
    # One device draws nearly all of a class, so a slice holds at most the classes that end or begin in it.
    assert all(len(np.unique(LABELS[share])) <= 3 for share in shares)


@pytest.mark.parametrize("devices", [1, 5, 12])
def test_each_device_gets_one_writer_lowest_ids_first(devices: int) -> None:
    shares = partition("writer", LABELS, devices, seed=0, owners=OWNERS + 40)
    assert [set((OWNERS[share] + 40).tolist()) for share in shares] == [{40 + device} for device in range(devices)]
    assert [len(share) for share in shares] == np.bincount(OWNERS)[:devices].tolist()


def test_writer_groups_deal_every_writer_and_the_rest_to_the_last() -> None:
    # Source: PruneFL, 193 writers on ten devices: nine times 19 and once 22.
    owners = np.repeat(np.arange(193), 2)[np.random.default_rng(2).permutation(386)]
    shares = partition("writer-groups", np.zeros(386), 10, seed=0, owners=owners)
    writers = [np.unique(owners[share]) for share in shares]
    assert [len(found) for found in writers] == [19] * 9 + [22]
    assert np.array_equal(np.concatenate(writers), np.arange(193))
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(386))


@pytest.mark.parametrize(
    ("kind", "devices", "options", "words"),
    [
        ("random", 2, {}, ["$.data.partition", "'random'", "iid, file-order, dirichlet"]),
        ("iid", 0, {}, ["$.cohort.local", "0 devices"]),
        ("iid", 1001, {}, ["$.data", "1000 examples", "1001 devices"]),
        ("dirichlet", 10, {"minimum": 101}, ["$.data", "101"]),
        ("dirichlet", 10, {"alpha": 0.0}, ["$.data.alpha", "0.0"]),
        ("dirichlet", 10, {"alpha": float("nan")}, ["$.data.alpha", "nan"]),
        ("writer", 3, {}, ["$.data.partition", "iid or dirichlet"]),
        ("writer", 13, {"owners": OWNERS}, ["12 writers", "13 devices"]),
        ("writer-groups", 13, {"owners": OWNERS}, ["12 writers", "13 devices"]),
        ("writer-groups", 2, {}, ["$.data.partition", "'writer-groups'"]),
    ],
)
def test_impossible_partition_is_refused(kind: str, devices: int, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        partition(kind, LABELS, devices, seed=0, **options)
    assert all(word in str(caught.value) for word in words)
