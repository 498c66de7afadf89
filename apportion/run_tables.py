"""From what a program hands over (a module, arrays, a method, settings) to the tables of a run file.

The run file's own reader checks them, so every problem has its path (``$.training.lr``), however it was given.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from apportion import given
from coordinator.config.cohort import LocalGroup
from coordinator.config.parameter_groups import ParameterGroupConfig
from coordinator.config.run_config import EvaluationConfig
from coordinator.config.training import TrainingConfig
from edge.contracts.errors import ApportionError, ConfigError

if TYPE_CHECKING:
    import numpy as np

    from coordinator.data.datasets import Dataset

Table = dict[str, Any]
_ARRAYS = "give (x, y), (x_train, y_train, x_test, y_test), or {'x': x, name: array, ...}"


class Method:
    """``Method("fedhm", levels=[1, 4])``: a method by its name, with its options.

    Attributes:
        name: one of :func:`apportion.methods`, or ``package.module:Class``; a class is known by its own path.
        options: of the method, in a run file's spelling (``a_b`` becomes ``a-b``).
    """

    def __init__(self, method: str | type, /, **options: Any) -> None:
        self.name = given.keep_function(method) if isinstance(method, type) else method
        self.options = {_kebab(key): value for key, value in options.items()}

    def __repr__(self) -> str:
        return f"Method({', '.join([repr(self.name), *(f'{key}={value!r}' for key, value in self.options.items())])})"


class Task:
    """``Task("regression", loss="huber")``: what is trained for, by its name, with its options.

    Attributes:
        name: one of ``docs/tasks.md``, ``package.module:Class``, or ``module`` for a model with its own
            ``training_step``; a class is known by its own path.
        options: of the task.
    """

    def __init__(self, task: str | type, /, **options: Any) -> None:
        self.name = given.keep_function(task) if isinstance(task, type) else task
        self.options = dict(options)

    def __repr__(self) -> str:
        return f"Task({', '.join([repr(self.name), *(f'{key}={value!r}' for key, value in self.options.items())])})"


class Data:
    """``Data((x, y), partition="dirichlet", alpha=0.3)``: where examples come from, and how they are dealt out.

    Args:
        source: arrays, a folder, a function or the name of a source; see :class:`apportion.Federation`.
        settings: further keys of ``[data]``.
    """

    def __init__(self, source: Any, **settings: Any) -> None:
        self.source = source
        self.settings = settings


@dataclass(frozen=True)
class Examples:
    """What is known of the data before a run: the shape of one example and the class names; empty when unknown."""

    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()


def model_table(model: Any, examples: Callable[[], Examples] = Examples) -> Table:
    """``[model]`` of a name, a torch module, what builds one, or a table whose ``build`` is one of those.

    Args:
        examples: asked what an own model's input and classes are, where the table does not say.
    """
    table = plain(model) if isinstance(model, Mapping) else {"build": model}
    build = table.get("build")
    if not isinstance(build, str) and build is not None:
        table["build"] = _keep_model(build)
    if ":" in str(table.get("build", "")) and not {"input", "classes"} <= table.keys():
        known = examples()
        if known.shape:
            table.setdefault("input", list(known.shape))
        if known.classes:
            table.setdefault("classes", list(known.classes))
    return table


def _keep_model(build: Any) -> str:
    from torch import nn

    if isinstance(build, nn.Module):
        return given.keep_module(build)
    if callable(build):
        return given.keep_function(build)
    raise ConfigError(
        [
            f"$.model.build: a {type(build).__name__} given; a torch.nn.Module, a function or class that builds one, "
            "a name of apportion.models(), or package.module:function expected"
        ]
    )


def data_table(
    data: Any, table: Table, evaluation: Table, seed: int, *, has_task: bool = False
) -> tuple[Table, Callable[[], Examples]]:
    """``[data]`` of arrays, a folder, a function or a source's name, over what ``table`` has; and what it holds.

    Args:
        has_task: labels are whatever the task reads, not classes.
    """
    holdout = evaluation.get("holdout", EvaluationConfig().holdout)
    if not isinstance(holdout, int | float) or not 0 < holdout <= 0.9:
        holdout = EvaluationConfig().holdout  # the reader of [evaluation] says what is wrong with it
    if isinstance(data, Data):
        table, data = {**table, **plain(data.settings)}, data.source
    elif isinstance(data, Mapping) and "x" not in data:
        table, data = {**table, **plain(data)}, data.get("source")
    if data is None or (isinstance(data, str) and not Path(data).expanduser().is_dir()):
        table = {**table, "source": data} if data is not None else table
        return table, lambda: _examples_of(table, seed, holdout)
    from coordinator.data.datasets import Dataset

    if isinstance(data, str | Path):
        data = folder_arrays(Path(data).expanduser())
    if callable(data) and len(inspect.signature(data).parameters) >= 3:
        table = {**table, "source": given.keep_function(data)}
        return table, lambda: _examples_of(table, seed, holdout)
    if callable(data):
        data = data()
    arrays = data if isinstance(data, Dataset) else checked_arrays(named_arrays(data))

    def load(path: Path | None, seed: int, holdout: float) -> Dataset:
        return arrays if isinstance(arrays, Dataset) else dataset_of(arrays, seed, holdout, has_task=has_task)

    dataset = load(None, seed, holdout)
    parts = [dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test]
    whole = parts if isinstance(arrays, Dataset) else list(arrays)
    named = "\n".join((*dataset.classes, "")).encode() + b"\n"
    import numpy as np

    source = given.keep_arrays(load, *whole, np.frombuffer(named, np.uint8))
    return {**table, "source": source}, lambda: Examples(tuple(dataset.x_train.shape[1:]), tuple(dataset.classes))


def _examples_of(table: Table, seed: int, holdout: float) -> Examples:
    """What the source of ``table`` holds; nothing where it cannot be opened, which a run or the doctor says."""
    from coordinator.data.datasets import load_dataset
    from coordinator.run_file.loading import DATA_VARIABLE

    path = table.get("path") or os.environ.get(DATA_VARIABLE)
    try:
        found = load_dataset(str(table.get("source")), Path(path).expanduser() if path else None, seed, holdout)
    except ApportionError:
        return Examples()
    return Examples(tuple(found.x_train.shape[1:]), tuple(found.classes))


def folder_arrays(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The examples of a folder, as a device reads them.

    Raises:
        ConfigError: a folder of images, which only devices read; DataError: nothing readable there.
    """
    import numpy as np

    from edge.training.local_data import read_local_data

    found = read_local_data(str(folder))
    if not isinstance(found.x, np.ndarray):
        raise ConfigError(
            [f"$.data.source: {folder} is a folder of images; read them into an array [N, channels, height, width]"]
        )
    return found.x, found.y


def named_arrays(data: Any) -> Any:
    """``(x, y)`` of a mapping of named arrays, what it has beside ``x`` as records; anything else as it is.

    Raises:
        ConfigError: no ``x`` in it, or arrays of different lengths.
    """
    if not isinstance(data, Mapping):
        return data
    import numpy as np

    from edge.training.records import beside_x

    arrays = {str(name): np.asarray(value) for name, value in data.items()}
    lengths = {name: len(value) if value.ndim else 0 for name, value in arrays.items()}
    if "x" not in arrays or len(set(lengths.values())) > 1:
        raise ConfigError([f"$.data.source: arrays of {lengths} examples given; x, and as many of each, expected"])
    return arrays["x"], beside_x(arrays, lengths["x"])


def checked_arrays(data: Any) -> tuple[np.ndarray, ...]:
    """Two or four arrays of as many examples as labels.

    Raises:
        ConfigError: anything else; the message says what arrived.
    """
    import numpy as np

    if not isinstance(data, Sequence) or isinstance(data, str) or len(data) not in (2, 4):
        what = (
            f"{len(data)} values" if isinstance(data, Sequence) and not isinstance(data, str) else type(data).__name__
        )
        raise ConfigError([f"$.data.source: {what} given; {_ARRAYS}, a folder, a function or a source's name"])
    arrays = tuple(np.asarray(part.detach().cpu() if hasattr(part, "detach") else part) for part in data)
    for x, y in zip(arrays[::2], arrays[1::2], strict=True):
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
            raise ConfigError(
                [f"$.data.source: x has shape {x.shape} and y {y.shape}; as many labels as examples expected"]
            )
        if x.dtype == object or y.dtype == object:
            raise ConfigError(
                ["$.data.source: arrays of Python objects given; numbers (and class names in y) expected"]
            )
    return arrays


def dataset_of(arrays: tuple[np.ndarray, ...], seed: int, holdout: float, *, has_task: bool = False) -> Dataset:
    """Arrays as a dataset: of two, a share ``holdout`` that is drawn by ``seed`` is held out.

    Class indices stay; other labels (names) are counted in alphabetical order. With a task they are its own affair.
    """
    import numpy as np

    from coordinator.data.datasets import Dataset
    from edge.contracts.streams import permutation, stream_seed

    if len(arrays) == 2:
        x, y = arrays
        order = permutation(stream_seed(seed, "holdout"), len(y))
        held = max(1, int(len(y) * holdout))
        arrays = (x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]])
    x_train, y_train, x_test, y_test = arrays
    if has_task:
        return Dataset(x_train, y_train, x_test, y_test, ())
    if np.issubdtype(y_train.dtype, np.integer):
        top = int(max(y_train.max(initial=0), y_test.max(initial=0)))
        if min(y_train.min(initial=0), y_test.min(initial=0)) < 0:
            raise ConfigError(["$.data.source: a label below 0; class indices count from 0"])
        return Dataset(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), _indices(top + 1))
    if y_train.dtype.kind not in "US":
        raise ConfigError([f"$.data.source: labels of type {y_train.dtype}; class indices or class names expected"])
    names, codes = np.unique(np.concatenate([y_train, y_test]), return_inverse=True)
    codes = codes.astype(np.int64)
    split = len(y_train)
    return Dataset(x_train, codes[:split], x_test, codes[split:], tuple(str(name) for name in names))


def _indices(count: int) -> tuple[str, ...]:
    return tuple(str(index) for index in range(max(2, count)))


def method_table(method: str | Method | type | Mapping[str, Any]) -> Table:
    """``[method]`` of a name, a class, a :class:`Method` or a table."""
    if isinstance(method, Mapping):
        return plain(method)
    found = method if isinstance(method, Method) else Method(method)
    return {"name": found.name, **found.options}


def task_table(task: str | Task | type | Mapping[str, Any]) -> Table:
    """``[task]`` of a name, a class, a :class:`Task` or a table."""
    if isinstance(task, Mapping):
        return {str(key): _plain_value(value) for key, value in task.items()}
    found = task if isinstance(task, Task) else Task(task)
    return {"name": found.name, **found.options}


def training_table(training: TrainingConfig | Mapping[str, Any]) -> Table:
    """``[training]``: of a :class:`apportion.Train` what differs from its defaults."""
    table = _changed(training) if isinstance(training, TrainingConfig) else plain(training)
    if isinstance(groups := table.get("groups"), list):
        table["groups"] = [_plain_group(g) if isinstance(g, Mapping | ParameterGroupConfig) else g for g in groups]
    return table


def local_table(devices: int | Sequence[LocalGroup | Mapping[str, Any]]) -> list[Table]:
    """``[[cohort.local]]``: so many devices without a limit, or their groups."""
    if isinstance(devices, int):
        return [{"count": devices}]
    groups = [_changed(group) if isinstance(group, LocalGroup) else plain(group) for group in devices]
    # A group without a level or a budget may use what the machine has.
    return groups


def plain(table: Mapping[str, Any]) -> Table:
    """A table in a run file's spelling: ``a_b`` as ``a-b``, and lists for tuples."""
    return {_kebab(str(key)): _plain_value(value) for key, value in table.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain_value(entry) for entry in value]
    return value


def _plain_group(group: ParameterGroupConfig | Mapping[str, Any]) -> Table:
    return _changed(group) if isinstance(group, ParameterGroupConfig) else plain(group)


def _changed(struct: msgspec.Struct) -> Table:
    """The fields of a run file's struct that differ from their defaults, and those without one."""
    found = {}
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if value != field.default:
            found[field.name] = value
    return plain(found)


def _kebab(key: str) -> str:
    return key.replace("_", "-")
