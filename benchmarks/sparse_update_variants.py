"""Tasks and variants of :mod:`benchmarks.sparse_updates`, and the run file of one variant on one seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import sparse_update_data
from coordinator.data.datasets import Dataset

RATES = (0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        model: lines of ``[model]``.
        data: lines of ``[data]``.
        before: the data that the model is trained on first, and for how many passes.
        head: pattern of the tensors that begin anew; empty where the classes stay.
        devices: all of them in every round.
    """

    model: str
    data: str
    before: Callable[[], Dataset]
    passes: int
    head: str
    devices: int
    rounds: int


TASKS = {
    "images": Task(
        'build = "resnet20"\ninput = [3, 16, 16]\nclasses = 5',
        'source = "benchmarks.sparse_update_data:images"\nscale = 0.00392156862745098\n'
        "mean = [0.4914, 0.4822, 0.4465]\nstd = [0.2470, 0.2435, 0.2616]",
        sparse_update_data.images_before,
        3,
        "fc.*",
        10,
        10,
    ),
    "activities": Task(
        'build = "benchmarks.sparse_update_data:signal_network"\ninput = [6, 100]\nclasses = 5',
        'source = "benchmarks.sparse_update_data:activities"\npartition = "writer"',
        sparse_update_data.activities_before,
        15,
        "",
        18,
        15,
    ),
}

_FEATURES = {"norms": "trained", "begin": "gathered", "features": "kept"}
"""Of variants whose devices keep what frozen layers give."""
VARIANTS: dict[str, Mapping[str, Any]] = {
    "full": {},
    "head": {"levels": 0.9, "contributions": {}, "begin": "gathered"},
    "sparse 0.3": {"levels": 0.3, "compute": 0.5, "norms": "static", "begin": "gathered"},
    "sparse 0.15": {"levels": 0.15, "compute": 0.4, "norms": "static", "begin": "gathered"},
    "sparse 0.3, memory alone": {"levels": 0.3, "compute": 1.0, "norms": "static", "begin": "gathered"},
    "sparse 0.3, norms": {"levels": 0.3, "compute": 0.5, "norms": "trained", "begin": "gathered"},
    "sparse 0.5, norms": {"levels": 0.5, "compute": 0.6, "norms": "trained", "begin": "gathered"},
    "sparse 0.44, features": {"levels": 0.44, "compute": 0.55, **_FEATURES},
    "sparse 0.4, features": {"levels": 0.4, "compute": 0.5, **_FEATURES},
    "sparse 0.4, features, 0.6": {"levels": 0.4, "compute": 0.6, **_FEATURES},
    "sparse 0.5, features": {"levels": 0.5, "compute": 0.5, **_FEATURES},
}
"""Options of ``sparse_update`` and, as ``begin``, the file that a variant's weights are from; ``full`` is FedAvg."""
BEFORE = ", statistics as before"
OTHERS: dict[str, Mapping[str, Any]] = {
    f"{name}{BEFORE}": {**options, "begin": "before"}
    for name, options in VARIANTS.items()
    if options and "alone" not in name and options.get("norms") != "trained"
}
"""The same with the statistics of norms that the model was trained with before."""


def run_text(name: str, seed: int, variant: str, folder: Path, rate: float = RATES[0]) -> str:
    """The run file of a variant; what is not trained is the same at every rate."""
    task, options = TASKS[name], {**VARIANTS, **OTHERS}[variant]
    begin = options.get("begin", "before")
    method = 'name = "fedavg"'
    if options:
        gains = "{}" if "contributions" in options else f'"{folder / begin}-gains.json"'
        compute = f"\ncompute = {options['compute']}" if "compute" in options else ""
        chosen = "".join(f'\n{key} = "{options[key]}"' for key in ("norms", "features") if key in options)
        method = f'name = "sparse_update"\nlevels = [{options["levels"]}]\ncontributions = {gains}{compute}{chosen}'
    weights = f'\nweights = "{folder / begin}.safetensors"' if (folder / "before.safetensors").exists() else ""
    kept = '\nfrozen-norm = "static"\ncached-features = "float32"' if "features" in options else ""
    new = f'\nweights-except = ["{task.head}"]' if weights and task.head else ""
    return f"""
[federation]
name = "sparse-updates"
seed = {seed}
rounds = {task.rounds}
[model]
{task.model}{weights}{new}
[method]
{method}
[training]
epochs = 1
batch = 32
last-batch = "keep"
lr = {rate}
momentum = 0.9{kept}
[data]
{task.data}
[evaluation]
batch = 1000
every = 1
[cohort]
size = {task.devices}
[[cohort.local]]
count = {task.devices}
"""
