"""What of a run the map is searched by, and the sizes of its devices' shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.advice.recorded import Features
from coordinator.config.run_config import RunConfig
from coordinator.config.training import TrainingConfig
from coordinator.exporting.cut_exporter import class_names, dense_module, run_input_spec
from coordinator.exporting.run_data import load_run_data
from coordinator.local_devices.data_folders import device_shares
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Population:
    """The local devices of a run.

    Attributes:
        features: of the run.
        most_steps: of the device with the most examples, in a round.
        mean_steps: of all devices, in a round.
    """

    features: Features
    most_steps: int
    mean_steps: float


def population(config: RunConfig, dense: nn.Module | None = None) -> Population:
    """The devices of ``[[cohort.local]]`` with the examples that ``[data]`` deals to them.

    Raises:
        ConfigError: the run has no local devices, no ``[data]``, or labels that are not classes; DataError: the data
            cannot be read.
    """
    from torch import nn

    count = config.cohort.local_devices
    if not count:
        raise ConfigError(
            ["$.cohort.local: advise needs to know how many devices there are; add [[cohort.local]] with count"]
        )
    if config.task.name:
        raise ConfigError([f"$.task.name: '{config.task.name}' given; the map has runs of classifiers alone"])
    if config.model.build.startswith("language:"):
        raise ConfigError([f"$.model.build: '{config.model.build}' given; the map has runs of classifiers alone"])
    if not config.data.source:
        raise ConfigError(["$.data.source: advise deals the examples to see how devices differ; name a source"])
    dense = dense_module(config) if dense is None else dense
    dataset, names = load_run_data(config), class_names(config)
    shares = device_shares(config, dataset, max(count, config.data.devices))[:count]
    sizes = np.asarray([len(share) for share in shares])
    steps = [local_steps(config.training, int(size)) for size in sizes]
    features = Features(
        input=tuple(run_input_spec(config).shape),
        convolutional=any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in dense.modules()),
        classes=len(names),
        parameters=sum(p.numel() for p in dense.parameters()),
        devices=count,
        participants=min(config.cohort.size, count),
        examples=round(float(sizes.mean()), 1),
        skew=round(skew(dataset.y_train, shares, len(names)), 3),
        steps=local_steps(config.training, round(float(sizes.mean()))),
    )
    return Population(features, max(steps), float(np.mean(steps)))


def local_steps(training: TrainingConfig, examples: int) -> int:
    """Steps of a device with so many examples in one round."""
    if training.steps:
        return training.steps
    whole, rest = divmod(examples, training.batch)
    return training.epochs * max(1, whole + (1 if rest and training.last_batch == "keep" else 0))


def skew(labels_N: np.ndarray, shares: list[np.ndarray], classes: int) -> float:
    """Mean total variation distance between the classes of a device and those of all devices together."""
    counts_DK = np.stack([np.bincount(labels_N[share], minlength=classes) for share in shares]).astype(float)
    all_K = counts_DK.sum(axis=0) / counts_DK.sum()
    filled = counts_DK[counts_DK.sum(axis=1) > 0]
    return float((np.abs(filled / filled.sum(axis=1, keepdims=True) - all_K).sum(axis=1) / 2).mean())
