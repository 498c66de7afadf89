"""The gate beyond one step: what a session keeps from one run must not show in the next, nor steps in a row drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.errors import ParityError
from edge.contracts.manifest import InputSpec
from edge.contracts.tensors import TensorSpec
from export.formats.onnx_step.format import OnnxStep
from export.graph_session import GraphSession
from export.parity import check_parity
from export.self_test import self_test_of
from export.training_step import StepSpec
from export.written_programs import WrittenPrograms

SPEC = StepSpec(input=InputSpec(layout="features", shape=(6,)), classes=3, batch=4)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Leftover:
    """A session whose second run still holds the first one's results."""

    def __init__(self, model: bytes, gradients: Sequence[str]) -> None:
        self._session, self._first = GraphSession(model, gradients), dict[str, np.ndarray]()

    @property
    def outputs(self) -> Sequence[str]:
        return self._session.outputs

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self._session.run(feeds)
        mixed = {n: v + 0.5 * (self._first[n] - v) if self._first and v.ndim else v for n, v in outputs.items()}
        self._first = self._first or outputs
        return mixed


class Drifting(OnnxStep):
    """A format whose losses are right in the first step alone."""

    def self_test_losses(
        self,
        spec: StepSpec,
        files: Mapping[str, bytes],
        tensors: Iterable[TensorSpec],
        values: Mapping[str, np.ndarray],
        *,
        steps: int,
    ) -> tuple[float, ...]:
        losses = super().self_test_losses(spec, files, tensors, values, steps=steps)
        return tuple(loss * (1 + 0.01 * number) for number, loss in enumerate(losses))


@pytest.fixture(scope="module")
def written() -> WrittenPrograms:
    return OnnxStep().write(net(), SPEC)


def test_session_that_keeps_something_from_its_first_run_is_refused(written: WrittenPrograms) -> None:
    programs = {p.name: written.files[p.file] for p in written.programs}
    check_parity(net(), SPEC, programs, written.tensors)
    gradients = [f"grad:{name}" for name, _ in net().named_parameters()]
    train = programs["train"]
    with pytest.raises(ParityError, match="what step 2 does"):
        check_parity(net(), SPEC, {**programs, "train": lambda: Leftover(train, gradients)}, written.tensors)


def test_steps_in_a_row_that_leave_torch_are_refused(written: WrittenPrograms) -> None:
    assert len(self_test_of(net(), SPEC, OnnxStep(), written).losses) == 3
    with pytest.raises(ParityError, match="3 steps in a row"):
        self_test_of(net(), SPEC, Drifting(), written)
