"""Updates in fewer bits: what is sent, what is left over, and what the other side makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import UpdateRejected
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import Precision
from edge.contracts.precision import decoded, encoded, restored, scale_shape, scales_of
from edge.runtimes.weights_file import WeightsFile
from edge.supervisor.finished_work import FinishedWork
from edge.training.coded_update import CodedUpdate, LeftOver
from edge.training.update_file import write_update
from tests.edge.tiny_artifact import tiny_job

DIFFERENCE = np.random.default_rng(0).normal(0, 1e-3, (6, 40)).astype(np.float32)


def test_int8_rows_have_scales_of_their_own() -> None:
    difference = np.stack([np.full(16, 127.0), np.full(16, -1.0), np.zeros(16)]).astype(np.float32)
    difference[1, 0] = 0.5
    scales = scales_of(difference)
    np.testing.assert_allclose(scales, np.float32([1.0, 1 / 127, 0.0]))
    value = encoded(difference, "int8")
    assert value.dtype == np.int8
    # 0.5 is 63.5 steps of 1/127: ties go to the even one.
    assert value[:, 0].tolist() == [127, 64, 0]
    assert value[1, 1] == -127
    np.testing.assert_allclose(decoded(value, scales)[1, 1:], -1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "expected"), [((), ()), ((5,), ()), ((5, 15), ()), ((5, 16), (5,)), ((4, 2, 2, 4), (4,)), ((0, 16), ())]
)
def test_short_rows_share_one_scale(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert scale_shape(shape) == expected
    assert scales_of(np.zeros(shape, np.float32)).shape == expected
    assert encoded(np.zeros(shape, np.float32), "int8").shape == shape


def test_float16_does_not_overflow() -> None:
    assert encoded(np.float32([1e9, -1e9, 1.0]), "fp16").tolist() == [65504.0, -65504.0, 1.0]


@pytest.mark.parametrize(("precision", "bound"), [("fp16", 5e-4), ("int8", 0.5 / 127)])
def test_error_is_half_a_step_at_most(precision: Precision, bound: float) -> None:
    value = encoded(DIFFERENCE, precision)
    scales = scales_of(DIFFERENCE) if precision == "int8" else None
    error = np.abs(decoded(value, scales) - DIFFERENCE).max(axis=1)
    assert (error <= bound * np.abs(DIFFERENCE).max(axis=1) * 1.001).all()
    assert error.max() > 0


def coded(
    precision: Precision, trained: np.ndarray, received: np.ndarray, left_over: Mapping[str, np.ndarray] | None = None
) -> CodedUpdate:
    job = tiny_job()
    order = msgspec.structs.replace(job.order, precision=precision, upload=("fc.weight", "fc.bias"))
    manifest = ArtifactManifest.from_bytes(job.blobs[order.artifact.digest])
    names = {s.name: s for s in manifest.specs("parameter")}
    weight, bias = sorted(names, key=lambda name: -len(names[name].shape))[:2]
    order = msgspec.structs.replace(order, upload=(weight, bias))
    held = {weight: trained, bias: np.zeros(3, np.float32)}
    before = {weight: received, bias: np.zeros(3, np.float32)}
    return CodedUpdate(order, manifest, held.__getitem__, before, left_over or {})


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_what_is_sent_and_left_over_is_all_there_was(precision: Precision, tmp_path: Path) -> None:
    received = np.random.default_rng(1).normal(0, 0.1, DIFFERENCE.shape).astype(np.float32)
    update = coded(precision, received + DIFFERENCE, received)
    weight = update.coded[0]
    write_update(tmp_path / "update", update, "raw")
    write_update(tmp_path / "left", LeftOver(update), "raw")
    sent = WeightsFile(tmp_path / "update", where="test")
    left = WeightsFile(tmp_path / "left", where="test")
    trained = restored(sent, {weight: received, update.coded[1]: np.zeros(3, np.float32)}, where="test")
    assert trained.keys() == set(update.coded)
    np.testing.assert_allclose(trained[weight] - received + left[weight], DIFFERENCE, atol=6e-8)
    # The same again with what was left over: it is in the next update.
    again = coded(precision, received, received, {weight: left[weight]})
    scales = again[weight + "#scale"] if precision == "int8" else None
    sent_later = decoded(again[weight], scales)
    assert np.abs(sent_later).max() > 0
    np.testing.assert_allclose(sent_later, left[weight], atol=max(np.abs(left[weight]).max() / 100, 2.0**-24))


def test_feedback_loses_nothing_over_many_rounds() -> None:
    """A constant step below half a level is lost every time without feedback and arrives in full with it."""
    received = np.zeros((1, 32), np.float32)
    step = np.full((1, 32), 0.2 / 127, np.float32)
    step[0, 0] = 1.0  # sets the scale
    totals = {}
    for has_feedback in (True, False):
        total, left = np.zeros_like(step), {}
        for _ in range(50):
            update = coded("int8", received + step, received, left)
            weight = update.coded[0]
            total += decoded(update[weight], update[weight + "#scale"])
            left = {weight: LeftOver(update)[weight]} if has_feedback else {}
        totals[has_feedback] = total[0, 1:]
    np.testing.assert_allclose(totals[True], 50 * 0.2 / 127, rtol=0.1)
    assert (totals[False] == 0).all()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"w#scale": None}, "int8 'w' needs float32 scales \\(6,\\), none found"),
        ({"w#scale": np.zeros(5, np.float32)}, "int8 'w' needs float32 scales \\(6,\\), float32 \\(5,\\) found"),
        ({"w#scale": np.zeros(6, np.float16)}, "float16 \\(6,\\) found"),
        (
            {"w": np.zeros((6, 41), np.int8)},
            "'w' is a difference of shape \\(6, 41\\), the weights: float32 \\(6, 40\\)",
        ),
        ({"x": np.zeros(3, np.float16)}, "'x' is a difference of shape \\(3,\\), the weights: none"),
    ],
)
def test_a_difference_that_does_not_fit_is_rejected(changes: dict[str, np.ndarray | None], expected: str) -> None:
    sound = {"w": encoded(DIFFERENCE, "int8"), "w#scale": scales_of(DIFFERENCE), **changes}
    tensors = {name: value for name, value in sound.items() if value is not None}
    with pytest.raises(UpdateRejected, match=f"pi-1: .*{expected}"):
        restored(tensors, {"w": DIFFERENCE}, where="pi-1")


def test_whole_values_pass_whatever_was_asked_for() -> None:
    whole = {"w": DIFFERENCE, "n": np.array(3, np.int64)}
    assert restored(whole, {"w": DIFFERENCE}, where="pi-1") == whole


def finished(tmp_path: Path, **changes: object) -> tuple[FinishedWork, object]:
    order = msgspec.structs.replace(tiny_job().order, precision="int8", cut_digest="c" * 64, **changes)
    work = FinishedWork(tmp_path / "work")
    work.new_update_path(order.assignment_id).write_bytes(b"u")
    made = work.new_left_over_path(order)
    assert made is not None
    made.write_bytes(b"left over")
    return work, order


def test_left_over_of_an_accepted_update_is_kept_and_of_others_forgotten(tmp_path: Path) -> None:
    work, order = finished(tmp_path)
    work.settle(order, is_accepted=False)
    assert not work.left_over_path(order).exists()
    work, order = finished(tmp_path)
    work.settle(order, is_accepted=True)
    assert work.left_over_path(order).read_bytes() == b"left over"
    assert list((tmp_path / "work").iterdir()) == []


def test_left_over_of_a_cut_that_is_gone_is_removed(tmp_path: Path) -> None:
    work, order = finished(tmp_path)
    work.settle(order, is_accepted=True)
    other = msgspec.structs.replace(order, cut_digest="d" * 64)
    work, _ = finished(tmp_path)
    work.settle(other, is_accepted=True)
    assert not work.left_over_path(order).exists()
    assert work.left_over_path(other).exists()


def test_whole_values_and_cuts_that_change_leave_nothing_over(tmp_path: Path) -> None:
    order = tiny_job().order
    work = FinishedWork(tmp_path / "work")
    assert work.new_left_over_path(order) is None
    assert work.new_left_over_path(msgspec.structs.replace(order, precision="fp16")) is None
