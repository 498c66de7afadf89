"""Ready tasks: what each one says of a batch, its metrics by hand, and what is refused with its line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edge.contracts.errors import ConfigError, ExportRefused
from edge.contracts.manifest import InputSpec
from export.forward_check import check_forward
from export.model_call import ModelCall
from export.task_steps import SUM, evaluation_sums
from export.tasks import TASKS
from export.tasks.resolved import ResolvedTask, batch_tensors, resolve_task
from export.training_step import BatchTensor, StepSpec
from tests.export.tasks.models import CASES, FEATURES


class Given(nn.Module):
    """Gives what it was made with, whatever it is asked."""

    def __init__(self, said: Tensor) -> None:
        super().__init__()
        self.said = nn.Parameter(said)

    def forward(self, x: Tensor) -> Tensor:
        return self.said * 1.0


def scores(name: str, said: Any, batch: dict[str, Any], **options: Any) -> dict[str, float]:
    """Metrics of a task whose model says ``said`` of a batch."""
    model = Given(torch.tensor(said, dtype=torch.float32))
    task = resolve_task(name, options, model)
    made = {key: torch.tensor(value) for key, value in batch.items()}
    sums = {key: value.detach().numpy() for key, value in task.evaluation_step(ModelCall(model), made).items()}
    return task.metrics({**sums, "examples": np.array(len(made["x"]))})


def test_every_name_has_a_case() -> None:
    assert CASES.keys() == TASKS.keys()


def test_regression_by_hand() -> None:
    found = scores("regression", [[1.0], [4.0]], {"x": [[0.0], [0.0]], "y": [0.0, 2.0]})
    assert found == pytest.approx({"rmse": 2.5**0.5, "mae": 1.5})


def test_multi_label_by_hand() -> None:
    """Said: (1, 0), (1, 1); wanted: (1, 0), (0, 1): two right, one too many. The lowest score is of a wanted pair."""
    found = scores("multi-label", [[8.0, -8.0], [8.0, 8.0]], {"x": [[0.0], [0.0]], "y": [[1.0, 0.0], [0.0, 1.0]]})
    assert found["f1"] == pytest.approx(2 * 2 / (3 + 2))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1.0) / 2)
    assert found["auroc"] == pytest.approx(0.75)  # of 2 x 2 pairs three are in order, one is a tie at half each


def test_segmentation_by_hand() -> None:
    """Pixels said 0 0 1 1, wanted 0 1 1 and one that counts nothing."""
    logits = [[[[5.0, 5.0], [0.0, 0.0]], [[0.0, 0.0], [5.0, 5.0]]]]
    found = scores("segmentation", logits, {"x": [[[[0.0, 0.0], [0.0, 0.0]]]], "y": [[[0, 1], [1, -100]]]})
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["iou"] == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_perplexity_of_even_odds_is_the_vocabulary() -> None:
    found = scores("next-token", np.zeros((2, 5, 3)), {"x": [[0, 1, 2], [0, 1, 2]], "y": [[1, 2, 3], [1, -100, 4]]})
    assert found["perplexity"] == pytest.approx(5.0, rel=1e-5)


def test_contrastive_pairs_by_hand() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    task = resolve_task("contrastive-pairs", {"margin": 2.0}, Same())
    batch = {"x": torch.zeros(2, 1), "x2": torch.tensor([[0.5], [1.5]]), "y": torch.tensor([1, 0])}
    loss = task.training_step(ModelCall(Same()), batch)
    assert float(loss) == pytest.approx((0.25 + 0.25) / 2, abs=1e-4)
    assert float(task.evaluation_step(ModelCall(Same()), batch)["right"]) == 2


def test_ctc_is_torchs_own() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 4, 7, generator=generator)
    y = torch.tensor([[1, 1, 3], [2, -100, -100], [3, 2, 1]])
    lengths = torch.tensor([3, 1, 3])
    expected = nn.functional.ctc_loss(
        logits.log_softmax(1).permute(2, 0, 1), y.clamp(min=0), torch.tensor([7, 7, 7]), lengths, reduction="none"
    )
    model = Given(logits)
    loss = (
        resolve_task("ctc", {"length": 3}, model)
        .training_step(ModelCall(model), {"x": torch.zeros(3, 1), "y": y})
        .detach()
    )
    assert float(loss) == pytest.approx(float((expected.detach() / lengths).mean()), rel=1e-5)


def test_ctc_decodes_the_best_path() -> None:
    path = [0, 1, 1, 0, 1, 2, 0]
    logits = torch.nn.functional.one_hot(torch.tensor([path, path]), 3).transpose(1, 2).tolist()
    y = [[1, 1, 2], [1, 2, -100]]
    assert scores("ctc", logits, {"x": [[0.0], [0.0]], "y": y}, length=3)["accuracy"] == 0.5


def test_what_a_task_leaves_out_is_filled_in() -> None:
    class Least:
        def training_step(self, model: Any, batch: Any) -> Tensor:
            return torch.as_tensor(model(batch["x"])).mean()

    task = ResolvedTask(Least())
    assert task.better == {"loss": "lower"}
    assert task.tensors(FEATURES, 3) == (BatchTensor("y", (), "int64", symbols=3),)
    assert task.metrics({"right": np.array(3.0), "examples": np.array(4)}) == {"right": 0.75}


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("nothing", {}, "unknown task 'nothing'; known: classification, autoencoder"),
        ("regression", {"loss": "cubic"}, "loss = 'cubic'; one of mse, mae, huber expected"),
        ("regression", {"power": 2}, r"power.*its options: loss"),
        ("no_such_package:Task", {}, "cannot import 'no_such_package:Task'"),
        ("os:getcwd", {}, "a class with training_step expected"),
        ("collections:Counter", {}, "has no training_step"),
        ("module", {}, "Linear has no method training_step"),
    ],
)
def test_bad_tasks_are_named(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        resolve_task(name, options, nn.Linear(2, 2))


def test_a_task_that_does_not_fit_the_model_says_why() -> None:
    with pytest.raises(ConfigError, match=re.escape("segmentation needs an image [channels, height, width]")):
        batch_tensors(resolve_task("segmentation", {}, nn.Linear(2, 2)), "segmentation", FEATURES, 2)


class Bad:
    """A task whose steps do what its flags say."""

    def __init__(self, what: str) -> None:
        self.what = what

    def training_step(self, model: Any, batch: Any) -> Any:
        said = model(batch["x"])
        if self.what == "value":
            return said.mean() if said.sum().item() > 0 and bool(np.asarray(said.detach())[0, 0] > 9) else int(said)
        if self.what == "missing":
            return said.mean() * batch["weight"]
        return said if self.what == "vector" else said.mean()

    def evaluation_step(self, model: Any, batch: Any) -> Any:
        if self.what == "rows":
            return {"each": model(batch["x"])}
        return 3 if self.what == "number" else {}


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("value", r"training_step fails in test_tasks.py, line \d+: return said.mean\(\) if said.sum"),
        ("missing", r"reads batch\['weight'\] \(test_tasks.py, line \d+: .*\), a batch has x, y"),
        ("vector", r"training_step gives torch.float32 \[2, 8\], a scalar loss is needed"),
        ("rows", r"gives each of shape \['2', '8'\], which is no sum"),
        ("number", "evaluation_step gives int; metrics are sums over the examples"),
    ],
)
def test_steps_that_cannot_be_traced_name_their_line(what: str, named: str) -> None:
    spec = StepSpec(
        input=FEATURES,
        classes=2,
        task="tests.export.tasks.test_tasks:Bad",
        task_options={"what": what},
        tensors=(BatchTensor("y", (), "int64", symbols=2),),
    )
    with pytest.raises(ExportRefused, match=named):
        check_forward(nn.Linear(8, 8), spec)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"loss": "bce_one_hot"}, "a loss on logits"),
        ({"distillation": True}, "a teacher model"),
        ({"tensors": (BatchTensor("y"), BatchTensor("y"))}, "appears twice"),
    ],
)
def test_what_is_made_for_classification_is_refused(more: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        StepSpec(input=FEATURES, classes=2, task="regression", **more)


@pytest.mark.parametrize("name", ["x", "loss", "a b", ""])
def test_names_that_programs_use_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a plain name"):
        BatchTensor(name)


def test_symbols_need_a_count() -> None:
    with pytest.raises(ValueError, match="int64 needs symbols"):
        BatchTensor("y", (), "int64")


def test_sums_of_several_entries_are_outputs_of_their_own() -> None:
    model = Given(torch.zeros(2, 3))
    task = resolve_task("multi-label", {}, model)
    batch = {"x": torch.zeros(2, 1), "y": torch.ones(2, 3)}
    outputs = evaluation_sums(task, ModelCall(model), batch, "multi-label")
    assert [name for name in outputs if name.startswith(f"{SUM}wanted")] == [f"{SUM}wanted.{i}" for i in range(3)]
    assert float(outputs["loss"].detach()) == pytest.approx(2 * np.log(2), rel=1e-6)


def test_a_model_s_own_steps_see_the_values_that_they_are_given() -> None:
    case = CASES["module"]
    module = case.build().eval()
    task = resolve_task("module", {}, module)
    zeros = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    batch = {"x": torch.ones(2, 8)}
    given = task.training_step(ModelCall(module, zeros), batch)
    assert float(given) == pytest.approx(float(torch.log(torch.cosh(torch.tensor(1.0)))), rel=1e-5)
    assert float(given) != pytest.approx(float(task.training_step(ModelCall(module), batch).detach()), rel=1e-3)


def test_symbols_are_inputs_of_own_models() -> None:
    spec = CASES["next-token"].step()
    assert spec.tensors == (BatchTensor("y", (7,), "int64", symbols=11),)
    with pytest.raises(ConfigError, match="next-token needs symbols"):
        batch_tensors(resolve_task("next-token", {}, nn.Linear(2, 2)), "next-token", InputSpec("features", (3,)), 4)
