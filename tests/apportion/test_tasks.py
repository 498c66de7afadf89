"""Every ready task, and a model with steps of its own, as a federation of four agents that beats its baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import datasets
from torch import Tensor, nn

import apportion
from tests.export.tasks.models import Tagger

LENGTH = 16


@dataclass(frozen=True)
class Job:
    """A task on data: how it is trained, the metric that is held, and what a model that learns nothing has.

    Attributes:
        data: examples by name, and the baseline's value of the metric.
        share: what of the way from the baseline to a perfect model has to be gone.
    """

    data: Callable[[], tuple[dict[str, np.ndarray], float]]
    model: Callable[[], nn.Module]
    metric: str
    share: float
    model_table: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.2
    rounds: int = 4


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = datasets.load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


@cache
def text() -> np.ndarray:
    """Letters of scikit-learn's own pages on its datasets, 0 for what is none."""
    pages = "".join(getattr(datasets, f"load_{name}")().DESCR for name in ("iris", "wine", "diabetes", "breast_cancer"))
    codes = np.frombuffer(pages.lower().encode("ascii", "replace"), np.uint8).astype(np.int64) - 96
    return np.where((codes < 1) | (codes > 26), 0, codes)


def pieces(values: np.ndarray, shift: int = 0) -> np.ndarray:
    count = (len(values) - 1) // LENGTH
    return values[shift : shift + count * LENGTH].reshape(count, LENGTH)


def numbers() -> tuple[dict[str, np.ndarray], float]:
    """Diabetes' progression, standardised: the mean is off by 1 (RMSE)."""
    found = datasets.load_diabetes()
    return {"x": found.data * 20, "y": (found.target - found.target.mean()) / found.target.std()}, 1.0


def images() -> tuple[dict[str, np.ndarray], float]:
    """Digits: the mean image is off by each pixel's variance."""
    x, _ = digits()
    return {"x": x}, float(x.var(0).mean())


def properties() -> tuple[dict[str, np.ndarray], float]:
    """Digits' properties: odd, above four, round. F1 of saying all of everything."""
    x, y = digits()
    wanted = np.stack([y % 2 == 1, y > 4, np.isin(y, [0, 6, 8, 9])], 1).astype(np.float32)
    return {"x": x, "y": wanted}, float(2 * wanted.mean() / (1 + wanted.mean()))


def pairs() -> tuple[dict[str, np.ndarray], float]:
    """Two digits, the same or not, half and half."""
    x, y = digits()
    generator = np.random.default_rng(0)
    other = generator.permutation(len(y))
    by_class = {c: np.flatnonzero(y == c) for c in range(10)}
    same = np.array([generator.choice(by_class[c]) for c in y])
    together = generator.integers(0, 2, len(y))
    second = np.where(together == 1, same, other)
    return {"x": x, "x2": x[second], "y": (y == y[second]).astype(np.int64)}, float(max(np.mean(y != y[second]), 0.5))


def spoken() -> tuple[dict[str, np.ndarray], float]:
    """One or two of three signs, each three frames long, at any time in twelve frames with noise; how often the
    commonest sequence is right."""
    generator = np.random.default_rng(1)
    signs = generator.normal(size=(3, 4, 3))
    x, y = generator.normal(scale=0.2, size=(900, 4, 12)), np.full((900, 2), -100)
    for row, wanted in zip(x, y, strict=True):
        for place in range(generator.integers(1, 3)):
            wanted[place] = generator.integers(1, 4)
            start = 6 * place + generator.integers(0, 4)
            row[:, start : start + 3] += signs[wanted[place] - 1]
    _, counts = np.unique(y, axis=0, return_counts=True)
    return {"x": x, "y": y}, float(counts.max() / len(y))


def shapes() -> tuple[dict[str, np.ndarray], float]:
    """Squares and crosses on noise; the IoU of saying background everywhere."""
    generator = np.random.default_rng(2)
    x, y = generator.normal(scale=0.3, size=(600, 1, 12, 12)), np.zeros((600, 12, 12), np.int64)
    for image, mask in zip(x, y, strict=True):
        top, left = generator.integers(1, 7, 2)
        mask[top : top + 4, left : left + 4] = 1
        middle = generator.integers(2, 10)
        mask[middle, :], mask[:, middle] = 2, 2
        image[0] += (mask == 1) * 1.0 + (mask == 2) * 2.0
    return {"x": x, "y": y}, float(np.mean(y == 0) / 3)


def next_letters() -> tuple[dict[str, np.ndarray], float]:
    """The letter after each; the perplexity of their frequencies."""
    shares = np.bincount(text(), minlength=27) / len(text())
    shares = shares[shares > 0]
    return {"x": pieces(text()), "y": pieces(text(), 1)}, float(np.exp(-(shares * np.log(shares)).sum()))


def word_parts() -> tuple[dict[str, np.ndarray], float]:
    """No letter, a word's first, or another one; how often the commonest is right."""
    is_letter = text() > 0
    before = np.concatenate([[False], is_letter[:-1]])
    tags = np.where(~is_letter, 0, np.where(before, 2, 1)).astype(np.int64)
    return {"x": pieces(text()), "y": pieces(tags)}, float(np.bincount(tags).max() / len(tags))


class Denoiser(nn.Module):
    """A model with a loss that nobody listed: a smooth distance, weighed by a further array of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
        self.better = {"weighed": "lower"}

    def tensors(self, input: Any, classes: int) -> list[apportion.BatchTensor]:
        return [apportion.BatchTensor("y"), apportion.BatchTensor("weight")]

    def _off(self, batch: dict[str, Tensor]) -> Tensor:
        off: Tensor = torch.log(torch.cosh(self.body(batch["x"]).squeeze(1) - batch["y"])) * batch["weight"]
        return off

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return self._off(batch).mean()

    def evaluation_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"weighed": self._off(batch).sum()}

    def predict(self, batch: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.body(batch["x"])
        return out


def weighed_numbers() -> tuple[dict[str, np.ndarray], float]:
    arrays, _ = numbers()
    weight = 0.5 + (np.arange(len(arrays["y"])) % 2)
    return {**arrays, "weight": weight}, float((np.log(np.cosh(arrays["y"])) * weight).mean())


def perceptron(inputs: int, hidden: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def convolutions(channels: int, outputs: int, kind: type = nn.Conv2d) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(kind(channels, 16, 3, padding=1), nn.ReLU(), kind(16, outputs, 3, padding=1))


SYMBOLS = {"vocabulary": 27, "input": [LENGTH]}
JOBS = {
    "autoencoder": Job(images, perceptron(64, 24, 64), "reconstruction", 0.3, lr=1.0),
    "contrastive-pairs": Job(pairs, perceptron(64, 32, 8), "accuracy", 0.3, rounds=6),
    "ctc": Job(spoken, convolutions(4, 4, nn.Conv1d), "accuracy", 0.3, {"classes": 4}, {"length": 2}, rounds=6),
    "module": Job(weighed_numbers, Denoiser, "weighed", 0.15),
    "multi-label": Job(properties, perceptron(64, 32, 3), "f1", 0.5, {"classes": 3}, rounds=8),
    "next-token": Job(next_letters, lambda: Tagger(27, 27), "perplexity", 0.15, {**SYMBOLS, "classes": 27}, lr=1.0),
    "regression": Job(numbers, perceptron(10, 32, 1), "rmse", 0.2, {"classes": 1}, lr=0.05),
    "segmentation": Job(shapes, convolutions(1, 3), "iou", 0.5, {"classes": 3, "input": [1, 12, 12]}),
    "sequence-tagging": Job(word_parts, lambda: Tagger(27, 3), "accuracy", 0.5, {**SYMBOLS, "classes": 3}),
}
PERFECT = {"accuracy": 1.0, "f1": 1.0, "iou": 1.0, "perplexity": 1.0}


def federation(name: str) -> tuple[apportion.Federation, Job, float]:
    """The federation of a job, the job and its baseline."""
    job = JOBS[name]
    arrays, baseline = job.data()
    torch.manual_seed(0)
    model = {"build": job.model(), **job.model_table}
    train = apportion.Train(lr=job.lr, batch=16, epochs=2)
    task = apportion.Task(name, **job.options)
    made = apportion.Federation(
        model=model, data=arrays, task=task, devices=4, rounds=job.rounds, training=train, seed=3
    )
    return made, job, baseline


def gone(job: Job, value: float, baseline: float) -> float:
    """What of the way from the baseline to a perfect model a value is."""
    return (value - baseline) / (PERFECT.get(job.metric, 0.0) - baseline)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(JOBS))
def test_task_beats_its_baseline_on_four_agents(name: str, tmp_path: Path) -> None:
    made, job, baseline = federation(name)
    history = made.run(tmp_path / "run", quiet=True)
    assert history.summary["metric" if job.metric != "accuracy" else "accuracy"]
    value = history.summary["evaluation"]["models"]["server"][job.metric]
    assert gone(job, value, baseline) > job.share, (value, baseline)
    assert history.summary["evaluation"]["onnx_max_error"] < 1e-4


def test_a_class_of_the_program_is_a_task(tmp_path: Path) -> None:
    """And a history shows its metric."""

    class Quantile:
        better = {"pinball": "lower"}  # noqa: RUF012

        def __init__(self, share: float) -> None:
            self.share = share

        def tensors(self, input: Any, classes: int) -> list[apportion.BatchTensor]:
            return [apportion.BatchTensor("y")]

        def _loss(self, model: Any, batch: Any) -> Tensor:
            off = batch["y"] - model(batch["x"]).squeeze(1)
            return self.share * off.clamp(min=0) + (1 - self.share) * (-off).clamp(min=0)

        def training_step(self, model: Any, batch: Any) -> Tensor:
            return self._loss(model, batch).mean()

        def evaluation_step(self, model: Any, batch: Any) -> dict[str, Tensor]:
            return {"pinball": self._loss(model, batch).sum()}

    arrays, _ = numbers()
    made = apportion.Federation(
        model=perceptron(10, 8, 1)(), data=arrays, task=apportion.Task(Quantile, share=0.8), devices=2, rounds=1
    )
    history = made.simulate(tmp_path / "run", quiet=True)
    assert history.summary["metric"] == "pinball"
    assert history.rounds.column("pinball") == [history.summary["score"]]
    assert "pinball" in repr(history)
    assert "accuracy" not in history.summary


@pytest.mark.slow
def test_a_task_s_model_is_deployed_and_predicts_without_torch(tmp_path: Path) -> None:
    arrays, _ = images()
    job = JOBS["autoencoder"]
    made = apportion.Federation(
        model={"build": job.model()}, data=arrays, task="autoencoder", devices=2, rounds=1, training={"lr": 1.0}
    )
    history = made.simulate(tmp_path / "run", quiet=True)
    manifest = history.deploy(tmp_path / "model")
    assert (manifest.task, manifest.accuracy) == ("autoencoder", 0.0)
    assert isinstance(manifest.max_error, float)
    assert manifest.max_error < 1e-5
    predictor = apportion.Predictor(tmp_path / "model")
    scores = predictor.predict(arrays["x"][:50])
    assert scores.shape == (50,)
    assert predictor.predict(1 - arrays["x"][:50]).mean() > 2 * scores.mean()  # what it has never seen
    with pytest.raises(apportion.ConfigError, match="task 'autoencoder', which predicts no classes"):
        predictor.probabilities(arrays["x"][:2])
    with pytest.raises(apportion.ConfigError, match="--int8: what it costs is held by accuracy"):
        history.deploy(tmp_path / "int8", int8=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "multi-label"])
def test_devices_score_by_the_task_s_own_metrics(name: str, tmp_path: Path) -> None:
    """The mean over the devices is that of all their held-out examples together."""
    job = JOBS[name]
    config: dict[str, Any] = {"evaluation": {"devices": 0.3}, "rounds": 2, "devices": 3}
    arrays, _ = job.data()
    made = apportion.Federation(
        model={"build": job.model(), **job.model_table}, data=arrays, task=name, **config, training={"lr": job.lr}
    )
    found = made.simulate(tmp_path / "run", quiet=True).device_scores["metrics"]
    assert set(found) >= {job.metric, "loss"}
    low, high = found[job.metric]["lowest"]["value"], found[job.metric]["highest"]["value"]
    assert 0 < low <= found[job.metric]["mean"] <= high


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"x": np.zeros((6, 10))}, "no array 'y', which a batch of task 'regression' has; there are x"),
        ({"x": np.zeros((6, 10)), "y": np.zeros((6, 3))}, r"y of an example has shape \(3,\), the task takes \(\)"),
        ({"x": np.zeros((6, 10)), "y": np.array(["a"] * 6)}, "y holds no numbers"),
        ({"x": np.zeros((6, 10)), "y": np.full(6, np.nan)}, "y holds values that are not finite"),
    ],
)
def test_data_that_do_not_fit_the_task_are_named(data: dict[str, np.ndarray], named: str, tmp_path: Path) -> None:
    made = apportion.Federation(model=perceptron(10, 4, 1)(), data=data, task="regression", devices=2, rounds=1)
    with pytest.raises(apportion.ApportionError, match=named):
        made.simulate(tmp_path / "run", quiet=True)


def test_arrays_of_several_lengths_are_named() -> None:
    with pytest.raises(apportion.ConfigError, match=r"arrays of \{'x': 4, 'y': 3\} examples"):
        apportion.Federation(model="mlp", data={"x": np.zeros((4, 64)), "y": np.zeros(3)}, task="regression", rounds=1)


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"training": {"loss": "bce_one_hot"}}, r"\$.training.loss: task 'regression' has its own loss"),
        ({"method": apportion.Method("feddf")}, "feddf distils logits, which task 'regression' has none of"),
        ({"federation": {"keep-best": True, "metric": "f1"}}, r"'f1' is no metric of regression: \['loss', 'rmse'"),
        ({"data": apportion.Data({"x": 1}, partition="dirichlet")}, "deals by the class of each example"),
    ],
)
def test_what_a_task_cannot_be_combined_with_is_named(tables: dict[str, Any], named: str, tmp_path: Path) -> None:
    arrays, _ = numbers()
    if isinstance(tables.get("data"), apportion.Data):
        tables = {"data": apportion.Data(arrays, partition="dirichlet")}
    given = {"data": arrays, "model": perceptron(10, 4, 1)(), "task": "regression", "devices": 2, "rounds": 1}
    with pytest.raises(apportion.ConfigError, match=named):
        apportion.Federation(**{**given, **tables}).simulate(tmp_path / "run", quiet=True)
