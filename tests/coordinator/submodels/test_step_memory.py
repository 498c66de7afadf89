"""A step's memory told without exporting it, beside what exports of the same cuts predict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.planning.capacity_levels import MB, predicted_bytes
from coordinator.planning.estimate import Estimate, Estimator
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.step_memory import step_plan
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import PlanError
from edge.contracts.manifest import InputSpec
from export.formats import format_named
from export.forms.step_form import PLAIN
from export.training_step import Optimizer, StepSpec

MLP = 'build = "mlp"\ninput = [64]\nclasses = 10\noptions = { hidden = [2048, 2048] }'
SMALL_MLP = MLP.replace("2048", "512")
FEDAVG = 'name = "fedavg"'


@dataclass(frozen=True)
class Case:
    """A model under a method's level, in a round, on a runtime; ``growth`` is how far its own growth may be off."""

    model: str
    method: str
    runtime: str = "onnxruntime"
    level: int = 0
    round: int = 0
    optimizer: str = "momentum = 0.9"
    batch: int = 32
    growth: float = 0.12

    def config(self) -> RunConfig:
        return load_config_text(f"""
[federation]
name = "memory"
seed = 1
rounds = 20
[model]
{self.model}
[method]
{self.method}
[training]
epochs = 1
batch = {self.batch}
{self.optimizer}
[data]
source = "digits"
[cohort]
size = 1
[runtime]
name = ["{self.runtime}"]
""")


def image(build: str, side: int = 32, channels: int = 3) -> str:
    return f'build = "{build}"\ninput = [{channels}, {side}, {side}]\nclasses = 10'


TABLE = {
    "perceptron": Case(SMALL_MLP, 'name = "fedhm"\nlevels = [8]', growth=0.2),
    "digits": Case(MLP, FEDAVG),
    "digits-adam": Case(MLP, FEDAVG, optimizer='optimizer = "adam"'),
    "digits-adam-executorch": Case(MLP, FEDAVG, "executorch", optimizer='optimizer = "adam"'),
    "digits-training": Case(MLP, FEDAVG, "onnxruntime_training"),
    "digits-web": Case(MLP, FEDAVG, "onnxruntime_web"),
    "digits-plain": Case(MLP, FEDAVG, optimizer=""),
    "digits-rank-8": Case(MLP, 'name = "fedhm"\nlevels = [8]'),
    "digits-rank-8-executorch": Case(MLP, 'name = "fedhm"\nlevels = [8]', "executorch"),
    "conv2": Case(image("conv2", 28, 1), FEDAVG, batch=16),
    "resnet8": Case(image("resnet8"), FEDAVG),
    "resnet8-executorch": Case(image("resnet8"), FEDAVG, "executorch"),
    "resnet20-half": Case(image("resnet20"), 'name = "heterofl"\nlevels = [1, 0.5]', level=1),
    "resnet20_slt-late": Case(
        image("resnet20_slt", 16),
        'name = "slt"\nlevels = [0.25]\nrounds = 20\nsteps = [0.25, 0.25, 0.5, 0.5, 1.0]',
        round=19,
    ),
    "depthwise": Case(image("depthwise"), FEDAVG),
}
"""Cases of layers, cuts and optimizers of every kind, on all runtimes that train a model of one's own."""


def first_estimate(case: Case) -> Estimate:
    """What a planner is told of the step before anything was exported."""
    config = case.config()
    dense = dense_module(config)
    method = method_of_run(config, dense)
    cut = method.cut_shape(method.levels()[case.level], round_index=case.round, device="", seed=1)
    estimator = Estimator(CutExporter(config, dense).counted)
    found = estimator.estimate(cut, method.program(cut), case.runtime, PLAIN)
    assert found is not None
    return found


def predicted(case: Case, folder: Path | None) -> tuple[float, float, RunConfig]:
    """Growth without an export and, with ``folder``, as its export states it; in MB."""
    config = case.config()
    dense = dense_module(config)
    method, exporter = method_of_run(config, dense), CutExporter(config, dense)
    cut = method.cut_shape(method.levels()[case.level], round_index=case.round, device="", seed=1)
    program = method.program(cut)
    told = exporter.growth_bytes(cut, program, case.runtime) / MB
    if folder is None:
        return told, 0.0, config
    stated = exporter.export(cut, program, case.runtime, folder / "artifact").cost.predicted_peak_bytes / MB
    return told, stated, config


def check(case: Case, folder: Path) -> None:
    """The peak within 10 % of the export's, the growth within what the case says, a planner's first estimate near it.

    A first estimate never rules out what the export then allows.
    """
    told, stated, config = predicted(case, folder)
    peaks = [predicted_bytes(config, case.runtime, growth * MB) for growth in (told, stated)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.1)
    assert told == pytest.approx(stated, rel=case.growth)
    first = first_estimate(case)
    is_web = case.runtime == "onnxruntime_web"  # its memory grows by leaps
    assert (0.5 if is_web else 0.65) * stated < first.growth_bytes / MB < 1.2 * stated
    assert first.least_bytes / MB < stated


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize("name", TABLE)
def test_memory_is_that_of_an_export(name: str, tmp_path: Path) -> None:
    check(TABLE[name], tmp_path)


def test_first_estimate_is_near_what_an_export_states() -> None:
    """52.3 MB, as below; with the state counted twice it had been 108.7, and at least 65."""
    found = first_estimate(TABLE["digits"])
    assert found.growth_bytes / MB == pytest.approx(52.3, rel=0.1)
    assert found.least_bytes / MB < 52.3


def test_state_is_counted_once() -> None:
    """The demo's network: 16.6 MB of weights, as much momentum and gradients, and 1.05 times that for the runtime."""
    told, _, config = predicted(TABLE["digits"], None)
    assert told == pytest.approx(52.3, rel=0.01)  # what its export states
    assert predicted_bytes(config, TABLE["digits"].runtime, told * MB) / MB < 135  # 163 with the state counted twice


def test_peak_is_the_sum_of_what_is_held_at_once() -> None:
    """By hand, of two layers with a ReLU between them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 100, bias=False), nn.ReLU(), nn.Linear(100, 50, bias=False))
    spec = StepSpec(
        input=InputSpec(layout="flat", shape=(8,)),
        classes=50,
        batch=1000,
        optimizer=Optimizer(momentum=False, weight_decay=False),
    )
    plan = step_plan(module, spec, format_named("executorch_program"))
    assert plan.state == 4 * (8 * 100 + 100 * 50)
    hidden, logits = 4 * 1000 * 100, 4 * 1000 * 50
    # ReLU's output is kept for both gradients; beside it lie the gradient of it, that of the weight, and of the logits.
    assert 2 * hidden + logits <= plan.intermediate <= 2 * hidden + 3 * logits + 4 * 100 * 50


class _Peeks(nn.Module):
    """Looks at values, which the meta device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y * float(y.abs().max().item() > 0)


def test_model_that_does_not_run_without_values_says_what_to_do() -> None:
    case = TABLE["perceptron"]
    config = case.config()
    exporter = CutExporter(config, _Peeks())
    with pytest.raises(PlanError, match="memory of a step of mlp cannot be told without exporting it") as caught:
        exporter.growth_bytes({}, DeviceProgram(), "onnxruntime")
    assert "a level in place of a budget" in caught.value.hint
