"""Batch norm in training: ONNX Runtime writes the batch's statistics over operands, which must be nobody else's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from edge.contracts.manifest import InputSpec
from export.formats.onnx_step.format import OnnxStep
from export.gate_values import gate_values
from export.training_step import StepSpec
from tests.export.test_blocks import session

SPEC = StepSpec(input=InputSpec(layout="chw", shape=(4, 3, 3)), classes=3, batch=4)


class Shared(nn.Module):
    """Three norms of one value, of which one has no weight, and one of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.BatchNorm2d(4), nn.BatchNorm2d(4, eps=0.1), nn.BatchNorm2d(4)
        self.bare = nn.BatchNorm2d(4, affine=False)
        self.head = nn.Linear(4 * 9, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = self.first(x) * self.other(x) + self.bare(x)
        return self.head((y + self.last(y)).flatten(1))


def test_norms_that_share_their_operands_keep_their_own_statistics() -> None:
    written = OnnxStep().write(Shared(), SPEC)
    OnnxStep().check(Shared(), SPEC, written.files, written.programs, written.tensors)


def test_a_step_that_overflows_leaves_nothing_behind(tmp_path: Path) -> None:
    net = nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 3))
    written = OnnxStep().write(net, SPEC)
    values = gate_values(SPEC, written.tensors)
    device = session(written, tmp_path)
    device.load_state(values)
    first = device.run("train", values)["loss"]
    device.load_state(values)
    assert not np.isfinite(device.run("train", {**values, "input": values["input"] * np.float32(np.inf)})["loss"])
    device.load_state(values)
    assert device.run("train", values)["loss"] == first
    assert first == pytest.approx(np.log(3), abs=1.5)
