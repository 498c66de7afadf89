"""A device's windows cut into the shorter ones that an artifact takes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DataError
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.tensors import BATCH, TensorSpec
from edge.training.batches import Examples
from edge.training.local_data import LocalData
from tests.contracts.samples import MANIFEST


def manifest(length: int) -> ArtifactManifest:
    """An artifact of the task that takes windows of ``length`` of thirty symbols."""
    return msgspec.structs.replace(
        MANIFEST,
        task="next-token",
        input=InputSpec("tokens", (length,), "int64", vocabulary=30),
        tensors=(
            TensorSpec("input", (BATCH, length), "int64", "input"),
            TensorSpec("target", (BATCH, length), "int64", "target"),
        ),
        classes=("0",),
        symbols={"target": 30},
    )


STREAM = np.arange(1, 25) % 30
DATA = LocalData("here", STREAM[:-1].reshape(1, 23)[:, :16].reshape(2, 8), STREAM[1:17].reshape(2, 8))


def rows(examples: Examples) -> list[tuple[list[int], list[int]]]:
    x, y = examples.batch(np.arange(len(examples)), None)
    return [(a.tolist(), b.tolist()) for a, b in zip(x, y["y"], strict=True)]


def test_the_same_symbols_in_the_same_order() -> None:
    found = rows(Examples(DATA, manifest(4)))
    assert len(found) == 4
    assert [s for x, _ in found for s in x] == list(range(1, 17))
    assert all(y == [s + 1 for s in x] for x, y in found)
    assert rows(Examples(DATA, manifest(8)))[0] == (list(range(1, 9)), list(range(2, 10)))


def test_one_in_which_nothing_counts_is_left_out() -> None:
    y = DATA.y.copy()
    y[0, 4:] = -100
    examples = Examples(LocalData("here", DATA.x, y), manifest(4))
    assert [x[0] for x, _ in rows(examples)] == [1, 9, 13]
    assert len(examples.part(np.array([0, 2]))) == 2
    assert rows(examples.part(np.array([2])))[0][0][0] == 13


@pytest.mark.parametrize("length", [3, 16])
def test_no_multiple_is_refused_with_both_lengths(length: int) -> None:
    takes = rf"shape \(8,\), the artifact takes \({length},\)"
    with pytest.raises(DataError, match=rf"{takes}; give windows of {length} symbols or of a multiple"):
        Examples(DATA, manifest(length))


def test_mapped_windows_are_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", DATA.x.astype(np.int32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.shares_memory(Examples(LocalData("here", x, DATA.y), manifest(4))._x, x)
