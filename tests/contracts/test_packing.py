"""Masked tensors on the wire: exact round trips, the shorter of two mask forms, and what does not fit refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.packing import BITS, PLACES, SHAPE, expand, kept_values, pack_mask, unpack_mask, unpacked
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.weights_file import WeightsFile


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(bool, hnp.array_shapes(min_dims=0, max_dims=4, max_side=12)), st.floats(0, 1))
def test_any_mask_comes_back_as_it_was(mask: np.ndarray, share: float) -> None:
    thinned = mask & (np.random.default_rng(0).random(mask.shape) < share)
    packed = pack_mask("w", thinned)
    assert np.array_equal(unpack_mask("w", packed, where="test"), thinned)
    assert unpack_mask("w", packed, where="test").shape == mask.shape


@pytest.mark.parametrize(("kept", "form"), [(0, PLACES), (31, PLACES), (32, BITS), (500, BITS), (1024, BITS)])
def test_mask_travels_in_its_shorter_form(kept: int, form: str) -> None:
    mask = np.zeros(1024, bool)
    mask[:kept] = True
    packed = pack_mask("w", mask)
    assert "w" + form in packed
    assert packed["w" + form].nbytes == min(128, 4 * kept)


def test_packed_conv2_at_the_papers_density_is_a_sixth_of_the_dense_bytes() -> None:
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((2048, 3136)).astype(np.float32)
    mask = generator.random(weight.shape) < 0.134
    packed = {"w#kept": kept_values(weight, mask), **pack_mask("w", mask)}
    size = len(encode_tensors(packed)) / weight.nbytes
    assert size == pytest.approx(0.134 + 1 / 32, abs=0.001)


def test_weights_file_shows_packed_tensors_whole(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    mask = generator.random((7, 5)) < 0.3
    weight = np.where(mask, generator.standard_normal((7, 5)), 0).astype(np.float32)
    bias = generator.standard_normal(7).astype(np.float32)
    (tmp_path / "w").write_bytes(encode_tensors({"l.weight#kept": weight[mask], "l.bias": bias}))
    (tmp_path / "c").write_bytes(encode_tensors({**pack_mask("l.weight", mask), "stem.weight": bias}))
    tensors = WeightsFile(tmp_path / "w", where="round 1", constants=tmp_path / "c")
    assert set(tensors) == {"l.weight", "l.bias", "l.weight#mask", "stem.weight"}
    assert tensors.described("l.weight") == ((7, 5), np.dtype(np.float32))
    target = np.full((7, 5), 9, np.float32)
    tensors.copy_into("l.weight", target)
    assert np.array_equal(target, weight)
    assert np.array_equal(tensors["l.weight"], weight)
    held = np.zeros((7, 5), bool)
    tensors.copy_into("l.weight#mask", held)
    assert np.array_equal(held, mask)
    assert np.array_equal(tensors["stem.weight"], bias)


def test_update_is_whole_again_and_zero_outside_the_mask() -> None:
    mask = np.array([[True, False], [False, True]])
    update = {"w#kept": np.array([1, 2], np.float32), "b": np.ones(2, np.float32)}
    whole = unpacked(update, {"w": mask}, where="device a")
    assert whole["w"].tolist() == [[1, 0], [0, 2]]
    assert whole["b"] is update["b"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"w" + SHAPE: np.array([8])},
        {"w" + SHAPE: np.array([9]), "w" + BITS: np.zeros(1, np.uint8)},
        {"w" + SHAPE: np.array([8]), "w" + BITS: np.zeros(1, np.int8)},
        {"w" + SHAPE: np.array([-8]), "w" + BITS: np.zeros(1, np.uint8)},
        {"w" + SHAPE: np.array([8]), "w" + PLACES: np.array([8], np.int32)},
        {"w" + SHAPE: np.array([8]), "w" + PLACES: np.array([-1], np.int32)},
        {"w" + SHAPE: np.array([8]), "w" + PLACES: np.array([3, 3], np.int32)},
        {"w" + SHAPE: np.array([2**40]), "w" + PLACES: np.array([3], np.int32)},
        {"w" + SHAPE: np.array([8]), "w" + BITS: np.zeros(1, np.uint8), "w" + PLACES: np.array([3], np.int32)},
    ],
)
def test_mask_that_does_not_fit_is_refused(broken: dict[str, np.ndarray]) -> None:
    with pytest.raises(ArtifactCorrupt, match="'w'"):
        unpack_mask("w", broken, where="order")


def test_values_that_do_not_fit_the_mask_are_refused() -> None:
    with pytest.raises(ArtifactCorrupt, match="3 values for 1 kept"):
        expand(np.zeros(3), np.array([True, False]), np.zeros(2), where="device a")
    with pytest.raises(ArtifactCorrupt, match="which has no mask"):
        unpacked({"w#kept": np.zeros(1)}, {}, where="device a")
