"""The ``stats`` program of models that call a norm several times, as one encoder of two views does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edge.contracts.manifest import InputSpec
from export.formats.executorch_program.format import ExecutorchProgram
from export.formats.onnx_step.format import OnnxStep
from export.gate_values import gate_values
from export.programs import program_functions
from export.training_step import StepSpec
from tests.export.tasks.models import CASES

SPEC = StepSpec(input=InputSpec(layout="chw", shape=(3, 5, 5)), classes=3, batch=4)


class Twice(nn.Module):
    """A norm behind two convolutions, one that is called once, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.norm, self.idle = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.last(self.norm(self.second(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def moved(momentum: float) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """What a batch moves the statistics to, and what it was given."""
    program = program_functions(Twice(), SPEC)["stats"]
    values = gate_values(SPEC, [item.spec for item in program.inputs])
    values["stats_momentum"] = np.array(momentum, np.float32)
    found, _ = program.function({name: torch.from_numpy(np.array(value)) for name, value in values.items()})
    return {name.removeprefix("next:"): value.numpy() for name, value in found.items()}, values


def calls_of_norm(values: Mapping[str, np.ndarray]) -> list[Tensor]:
    """Inputs of ``norm`` in both of its calls."""
    module, seen = Twice().train(), []
    module.load_state_dict(
        {n: torch.from_numpy(np.array(values[n])) for n in module.state_dict() if n in values}, False
    )
    module.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        module(torch.from_numpy(values["input"]))
    return seen


@pytest.mark.parametrize("momentum", [1.0, 0.25])
def test_a_norm_called_twice_has_the_mean_of_its_calls(momentum: float) -> None:
    after, before = moved(momentum)
    calls = calls_of_norm(before)
    assert len(calls) == 2
    mean = sum(x.mean((0, 2, 3)) for x in calls) / 2
    variance = sum(x.var((0, 2, 3), unbiased=True) for x in calls) / 2
    for name, of_batch in (("norm.running_mean", mean), ("norm.running_var", variance)):
        wanted = before[name] + momentum * (of_batch.numpy() - before[name])
        np.testing.assert_allclose(after[name], wanted, rtol=1e-5, atol=1e-6)


def test_a_norm_that_is_never_called_keeps_its_statistics() -> None:
    after, before = moved(0.25)
    np.testing.assert_array_equal(after["idle.running_mean"], before["idle.running_mean"])
    np.testing.assert_array_equal(after["idle.running_var"], before["idle.running_var"])


@pytest.mark.parametrize("norm", ["batch", "running"])
def test_graphs_of_a_norm_called_twice_pass_the_gate(norm: str) -> None:
    spec = StepSpec(input=SPEC.input, classes=3, batch=4, norm=norm)  # type: ignore[arg-type]
    written = OnnxStep().write(Twice(), spec)
    OnnxStep().check(Twice(), spec, written.files, written.programs, written.tensors)


def test_pairs_through_one_encoder_with_a_norm_pass_the_gate() -> None:
    case = CASES["contrastive-pairs"]
    encoder = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    written = OnnxStep().write(encoder, case.step())
    OnnxStep().check(encoder, case.step(), written.files, written.programs, written.tensors)
    assert "stats.onnx" in written.files


@pytest.mark.slow
def test_executorch_has_it_too() -> None:
    written = ExecutorchProgram().write(Twice(), SPEC)
    ExecutorchProgram().check(Twice(), SPEC, written.files, written.programs, written.tensors)
