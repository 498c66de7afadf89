"""The data of a run: what it hands to devices that it starts, and what it evaluates on, as its model takes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.data.datasets import Dataset, load_dataset
from coordinator.data.folder import Takes
from coordinator.exporting.cut_exporter import class_names, dense_module, run_input_spec
from coordinator.exporting.task import task_batch_spec

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from edge.training.task_tensors import BatchSpec


def load_run_data(config: RunConfig) -> Dataset:
    """The training examples of ``[data]`` and the held-out ones of ``[evaluation]``.

    Raises:
        ConfigError, DataError: as :func:`coordinator.data.datasets.load_dataset`.
    """
    return load_dataset(
        config.data.source,
        config.data_path(),
        config.federation.seed,
        config.evaluation.holdout,
        takes=Takes(run_input_spec(config), class_names(config), _task(config)),
        held_out=Path(config.evaluation.data) if config.evaluation.data else None,
    )


def _task(config: RunConfig) -> BatchSpec | None:
    if not config.task.name:
        return None
    return task_batch_spec(config, dense_module(config), run_input_spec(config), class_names(config))
