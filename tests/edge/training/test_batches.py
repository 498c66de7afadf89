"""Examples as batches: layouts, labels, normalisation, augmentation by hand, and the order of batches."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from edge.contracts.errors import DataError, DeviceRefused
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.plan import Schedule, Turn
from edge.contracts.streams import permutation, stream_seed, uniform
from edge.training.batches import BatchOrder, Examples, augmented
from edge.training.local_data import LocalData, read_local_data
from tests.edge.tiny_artifact import softmax_graph, softmax_manifest


def manifest(spec: InputSpec, classes: tuple[str, ...] = ("a", "b", "c")) -> ArtifactManifest:
    made = ArtifactManifest.from_bytes(softmax_manifest(softmax_graph()))
    return msgspec.structs.replace(made, input=spec, classes=classes)


def examples(x: np.ndarray, y: object, spec: InputSpec, **options: tuple[str, ...]) -> Examples:
    return Examples(LocalData("here", x, np.asarray(y)), manifest(spec, **options))


ALL = np.arange(2)


def test_batch_is_scaled_then_normalised_per_channel() -> None:
    x = np.array([[[[51]], [[102]]], [[[0]], [[255]]]], np.uint8)
    spec = InputSpec("chw", (2, 1, 1), scale=1 / 255, mean=(0.1, 0.2), std=(0.5, 0.25))
    batch, _ = examples(x, [0, 1], spec).batch(ALL, 0)
    assert batch.dtype == np.float32
    np.testing.assert_allclose(batch.reshape(2, 2), [[0.2, 0.8], [-0.2, 3.2]], rtol=1e-5)


@pytest.mark.parametrize(
    ("found", "spec"),
    [
        ((2, 4, 4), InputSpec("chw", (1, 4, 4))),
        ((2, 4, 4, 3), InputSpec("chw", (3, 4, 4))),
        ((2, 3, 4, 4), InputSpec("chw", (3, 4, 4))),
        ((2, 8, 8), InputSpec("features", (64,))),
    ],
)
def test_batch_layouts_are_recognised(found: tuple[int, ...], spec: InputSpec) -> None:
    x = np.random.default_rng(0).normal(size=found)
    batch, _ = examples(x, [0, 1], spec).batch(ALL, 0)
    assert batch.shape == (2, *spec.shape)
    expected = np.moveaxis(x, -1, 1) if found == (2, 4, 4, 3) else x.reshape(2, *spec.shape)
    np.testing.assert_allclose(batch, expected, rtol=1e-6)


def test_batch_of_another_shape_names_both() -> None:
    with pytest.raises(DataError, match=r"\(5,\).*\(6,\)"):
        examples(np.zeros((2, 5)), [0, 1], InputSpec("features", (6,)))


def test_batch_tokens_outside_the_vocabulary_are_refused() -> None:
    spec = InputSpec("tokens", (3,), dtype="int64", vocabulary=5)
    batch, _ = examples(np.array([[0, 1, 2], [2, 3, 4]]), [0, 1], spec).batch(ALL, 0)
    assert batch.dtype == np.int64
    with pytest.raises(DataError, match=r"0\.\.4"):
        examples(np.array([[0, 1, 5], [0, 0, 0]]), [0, 1], spec)


def test_batch_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        examples(np.array([[1.0], [np.nan]]), [0, 1], InputSpec("features", (1,)))


def test_labels_by_name_follow_the_manifests_order_and_make_the_mask() -> None:
    made = examples(np.zeros((2, 1)), ["c", "a"], InputSpec("features", (1,)))
    assert made.batch(ALL, 0)[1].tolist() == [2, 0]
    assert made.label_mask().tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("y", [["a", "zebra"], [0, 3], [-1, 0], [0.5, 1.0]])
def test_labels_unknown_are_refused(y: list[object]) -> None:
    with pytest.raises(DataError, match=r"zebra|0\.\.2"):
        examples(np.zeros((2, 1)), y, InputSpec("features", (1,)))


def test_image_folder_is_decoded_and_resized(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (8, 8), (255, 0, 51)).save(tmp_path / "a" / "0.png")
    Image.new("L", (4, 4), 102).save(tmp_path / "b" / "0.png")
    made = Examples(read_local_data(str(tmp_path)), manifest(InputSpec("chw", (3, 4, 4), scale=1 / 255)))
    batch, y = made.batch(ALL, 0)
    assert y.tolist() == [0, 1]
    np.testing.assert_allclose(batch[0, :, 2, 2], [1.0, 0.0, 0.2], atol=1e-6)
    np.testing.assert_allclose(batch[1], 0.4, atol=1e-6)


def test_unknown_class_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "zebra").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "zebra" / "0.png")
    with pytest.raises(DataError, match=r"zebra.*'a', 'b', 'c'"):
        Examples(read_local_data(str(tmp_path)), manifest(InputSpec("chw", (3, 4, 4))))


@pytest.mark.parametrize("padding", [4, 2, 11])
def test_augmented_flip_and_crop_by_their_formula(padding: int) -> None:
    x = np.random.default_rng(1).normal(size=(5, 2, 6, 6)).astype(np.float32)
    u = uniform(42, 15)
    expected = []
    for i in range(5):
        image = x[i, :, :, ::-1] if u[i] < 0.5 else x[i]
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        top, left = (int(u[at + i] * (2 * padding + 1)) for at in (5, 10))
        expected.append(padded[:, top : top + 6, left : left + 6])
    assert 0 < sum(u[:5] < 0.5) < 5
    np.testing.assert_array_equal(augmented(x.copy(), ("flip", f"crop{padding}"), 42), np.stack(expected))


@pytest.mark.parametrize(
    ("names", "words"),
    [(("mixup",), "mixup"), (("crop0",), "crop0"), (("crop100",), "crop100"), (("crop2", "crop4"), "has 2 crops")],
)
def test_augmented_unknown_names_and_two_crops_are_refused(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(DeviceRefused, match=words):
        augmented(np.zeros((1, 1, 2, 2), np.float32), names, 0)


def indices(order: BatchOrder, count: int) -> list[list[int]]:
    return [batch.tolist() for batch in order.batches(count)]


def test_order_is_a_new_shuffle_each_epoch() -> None:
    order = BatchOrder(6, 3, "drop", data_seed=9)
    first, second = (permutation(stream_seed(9, "epoch", e), 6).tolist() for e in (0, 1))
    assert indices(order, 4) == [first[:3], first[3:], second[:3], second[3:]]
    assert first != second


def test_order_drop_leaves_the_incomplete_batch_out() -> None:
    order = BatchOrder(7, 3, "drop", 0)
    assert order.total(Schedule(epochs=2)) == 4
    assert [len(b) for b in indices(order, 4)] == [3, 3, 3, 3]


def test_order_keep_gives_a_smaller_batch() -> None:
    order = BatchOrder(7, 3, "keep", 0)
    assert order.total(Schedule(epochs=1)) == 3
    assert [len(b) for b in indices(order, 3)] == [3, 3, 1]


def test_order_wrap_fills_from_the_same_epochs_start() -> None:
    shuffled = permutation(stream_seed(0, "epoch", 0), 7).tolist()
    batches = indices(BatchOrder(7, 3, "wrap", 0), 3)
    assert batches[2] == [shuffled[6], shuffled[0], shuffled[1]]


@pytest.mark.parametrize("last_batch", ["drop", "wrap"])
def test_order_fewer_examples_than_a_batch_wraps(last_batch: str) -> None:
    shuffled = permutation(stream_seed(0, "epoch", 0), 2).tolist()
    order = BatchOrder(2, 5, last_batch, 0)  # type: ignore[arg-type]
    assert order.total(Schedule(epochs=1)) == 1
    assert indices(order, 1) == [(shuffled * 3)[:5]]


def test_order_steps_cross_epochs() -> None:
    order = BatchOrder(6, 3, "drop", 0)
    assert order.total(Schedule(steps=5)) == 5
    assert len(indices(order, 5)) == 5


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule(epochs=1, steps=1), Schedule(epochs=1, turns=(Turn("train", False),))]
)
def test_order_that_never_ends_or_starts_is_refused(schedule: Schedule) -> None:
    with pytest.raises(DeviceRefused, match="order"):
        BatchOrder(6, 3, "drop", 0).total(schedule)
