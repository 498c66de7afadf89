"""The tensors of a task's batch beside ``x``, from data: looked up by name, checked, in the dtypes of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge.contracts.errors import DataError
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.tensors import TensorSpec
from edge.training.local_data import LocalData
from edge.training.normalisation import normalised
from edge.training.records import Y, entry, names_of, records

INPUT, TARGET = "input", "target"
IGNORED = -100
"""A value of an int64 tensor that counts nothing."""


@dataclass(frozen=True)
class BatchSpec:
    """What data have to hold.

    Attributes:
        task: its name, for messages.
        classes: names that stand for their numbers.
        tensors: of a batch beside ``input``.
        symbols: as in manifests.
    """

    task: str
    input: InputSpec
    classes: tuple[str, ...]
    tensors: tuple[TensorSpec, ...]
    symbols: Mapping[str, int]


def batch_spec(manifest: ArtifactManifest) -> BatchSpec:
    """What data have to hold for an artifact of a task."""
    tensors = tuple(spec for spec in manifest.specs("input", "target") if spec.name != INPUT)
    return BatchSpec(manifest.task, manifest.input, manifest.classes, tensors, manifest.symbols)


def array_name(spec: TensorSpec) -> str:
    """Name of the array in the data that ``spec`` is fed."""
    return Y if spec.name == TARGET else spec.name


def fit_tensors(data: LocalData, batch: BatchSpec) -> np.ndarray:
    """Records of the tensors beside the input, see :mod:`edge.training.records`, by the names of their arrays.

    Raises:
        DataError: an array is not there, has another shape, or values that the tensor cannot take.
    """
    return records({array_name(spec): _fitted(data, batch, spec) for spec in batch.tensors}, len(data))


def _fitted(data: LocalData, batch: BatchSpec, spec: TensorSpec) -> np.ndarray:
    name, shape = array_name(spec), tuple(int(size) for size in spec.shape[1:])
    try:
        value = entry(data.y, name)
    except KeyError:
        found = ", ".join(("x", *names_of(data.y)))
        raise DataError(
            f"{data.where}: no array '{name}', which a batch of task '{batch.task}' has; there are {found}; save it "
            "beside them"
        ) from None
    if value.ndim == len(shape) + 2 and value.shape[1] == 1:
        value = value[:, 0]
    if value.shape[1:] != shape:
        raise DataError(f"{data.where}: {name} of an example has shape {value.shape[1:]}, the task takes {shape}")
    fitted = _numbers(data, batch, name, value) if spec.dtype == "float32" else _symbols(data, batch, spec, value)
    is_like_input = spec.role == "input" and spec.dtype == "float32" and shape == batch.input.shape
    if is_like_input:  # another look at what the model takes
        return normalised(fitted, batch.input)
    return fitted


def _numbers(data: LocalData, batch: BatchSpec, name: str, value: np.ndarray) -> np.ndarray:
    try:
        numbers = value.astype(np.float32)
    except ValueError as error:
        raise DataError(f"{data.where}: {name} holds no numbers ({error}); task '{batch.task}' needs them") from error
    if not np.isfinite(numbers).all():
        raise DataError(f"{data.where}: {name} holds values that are not finite; clean the data")
    return numbers


def _symbols(data: LocalData, batch: BatchSpec, spec: TensorSpec, value: np.ndarray) -> np.ndarray:
    name, count = array_name(spec), batch.symbols[spec.name]
    if value.dtype.kind in "US":
        numbers = {label: index for index, label in enumerate(batch.classes)}
        unknown = sorted({str(label) for label in np.unique(value)} - numbers.keys())
        if unknown:
            raise DataError(
                f"{data.where}: {name} has {unknown[:5]}, the model knows {list(batch.classes)[:20]}; rename or "
                "remove them"
            )
        value = np.vectorize(numbers.__getitem__, otypes=[np.int64])(value)
    counted = value[value != IGNORED]
    if value.dtype.kind not in "iub" or (counted.size and (counted.min() < 0 or counted.max() >= count)):
        raise DataError(
            f"{data.where}: {name} is {value.dtype} from {value.min()} to {value.max()}, whole numbers 0..{count - 1} "
            f"expected, or {IGNORED} for a place that counts nothing"
        )
    return value.astype(np.int64)
