"""Local examples as an artifact's batches: layout, labels, normalisation, seeded augmentation, and their order.

Everything is a function of (examples, manifest, order): a restarted assignment sees the same batches. Epoch e is a
Fisher-Yates shuffle over SplitMix64 seeded ``stream_seed(data_seed, "epoch", e)``; batch b of an assignment is
augmented from ``stream_seed(data_seed, "augment", b)``. Specified with golden vectors in docs/wire-protocol.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.contracts.augmentation import augmentation
from edge.contracts.errors import DataError, DeviceRefused
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.plan import LastBatch, Schedule
from edge.contracts.streams import permutation, stream_seed, uniform
from edge.language.tokenizer import check_sizes
from edge.training.local_data import LocalData
from edge.training.normalisation import normalised
from edge.training.records import Y, entry, names_of
from edge.training.shorter_windows import in_windows
from edge.training.sources.images import pillow
from edge.training.task_tensors import batch_spec, fit_tensors


class Examples:
    """Local data checked against a manifest.

    Attributes:
        choices: questions beside them; None: there are none.

    Raises:
        DataError: shapes, dtypes or labels that are not what the artifact takes.
    """

    def __init__(self, data: LocalData, manifest: ArtifactManifest) -> None:
        self._input = manifest.input
        self._classes = manifest.classes
        data, rows = in_windows(data, manifest)
        self._x = fit_input(data, manifest.input)
        self._y = fit_tensors(data, batch_spec(manifest)) if manifest.task else _targets(data, manifest)
        self._rows = rows
        self.choices = data.choices

    def __len__(self) -> int:
        return len(self._y if self._rows is None else self._rows)

    def batch(self, indices: np.ndarray, augment_seed: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, *input.shape] and targets [B, ...] of the examples at ``indices``, C-contiguous.

        Of a task there are records of what its batch has beside the input, in place of targets.

        Without a seed nothing is augmented.
        """
        spec = self._input
        indices = self.places(indices)
        if spec.dtype != "float32":
            return np.ascontiguousarray(self._x[indices], dtype=spec.dtype), self._y[indices]
        x = self._x[indices].astype(np.float32)
        if spec.augment and augment_seed is not None:
            x = augmented(x, spec.augment, augment_seed)
        return normalised(x, spec), self._y[indices]

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Where the examples at ``indices`` are in the device's data, of which these may be a part."""
        return indices if self._rows is None else self._rows[indices]

    @property
    def in_data(self) -> int:
        """Examples of the device's data, of which these may be a part."""
        return len(self._y)

    def label_mask(self) -> np.ndarray:
        """float32 [classes]: 1 for classes with a local example."""
        mask = np.zeros(len(self._classes), np.float32)
        mask[list(self.labels())] = 1.0
        return mask

    def labels(self) -> tuple[int, ...]:
        """Classes with a local example, rising; none of a task, whose targets are its own."""
        if self._y.dtype.names is not None:
            return ()
        return tuple(int(label) for label in np.unique(self._y if self._rows is None else self._y[self._rows]))

    def part(self, rows: np.ndarray) -> Examples:
        """Those at ``rows``, numbered anew; a view."""
        chosen = copy.copy(self)
        chosen._rows = rows if self._rows is None else self._rows[rows]
        return chosen


@dataclass(frozen=True)
class BatchOrder:
    """Which examples go into which batch.

    Args:
        last_batch: what becomes of an epoch's incomplete batch: ``drop``, ``keep`` (smaller), or ``wrap`` (filled from
            the start of the same epoch). Fewer examples than a batch: ``drop`` wraps.
    """

    examples: int
    batch: int
    last_batch: LastBatch
    data_seed: int

    @property
    def per_epoch(self) -> int:
        """Batches in one epoch, at least 1."""
        if self.last_batch == "drop":
            return max(1, self.examples // self.batch)
        return math.ceil(self.examples / self.batch)

    def total(self, schedule: Schedule) -> int:
        """Batches of the whole schedule.

        Raises:
            DeviceRefused: a schedule that never ends or never starts.
        """
        if not schedule.turns or not any(turn.advance_batch for turn in schedule.turns):
            raise DeviceRefused("the order's schedule never advances to another batch; order at least one such turn")
        if (schedule.epochs > 0) == (schedule.steps > 0):
            raise DeviceRefused(
                f"the order says {schedule.epochs} epochs and {schedule.steps} steps; order one of both"
            )
        return schedule.steps if schedule.steps > 0 else schedule.epochs * self.per_epoch

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """Indices of ``count`` batches, epoch after epoch, each int64 [batch] (shorter with ``keep``)."""
        for number in range(count):
            epoch, place = divmod(number, self.per_epoch)
            if place == 0:
                order = permutation(stream_seed(self.data_seed, "epoch", epoch), self.examples)
            indices = order[place * self.batch : (place + 1) * self.batch]
            if len(indices) < self.batch and self.last_batch != "keep":
                indices = np.resize(np.concatenate([indices, order]), self.batch)
            yield indices

    def augment_seed(self, number: int) -> int:
        """Seed of the augmentation of batch ``number`` of the assignment."""
        return stream_seed(self.data_seed, "augment", number)


def augmented(x: np.ndarray, names: tuple[str, ...], seed: int) -> np.ndarray:
    """Raw images [B, C, H, W] after the named augmentations, one draw per example and purpose.

    With u = uniform(seed, 3B): ``flip`` mirrors example i when u[i] < 0.5; ``crop4`` pads p = 4 zeros on every side and
    cuts the window at row floor((2p + 1) u[B + i]), column floor((2p + 1) u[2B + i]); ``crop2`` two, and so on.

    Raises:
        DeviceRefused: an unknown name.
    """
    try:
        flips, padding = augmentation(names)
    except ValueError as error:
        raise DeviceRefused(f"{error}; order without it") from error
    count, _, height, width = x.shape
    u = uniform(seed, 3 * count)
    if flips:
        mirrored = u[:count] < 0.5
        x[mirrored] = x[mirrored, :, :, ::-1]
    if padding:
        offsets = np.floor(u[count:] * (2 * padding + 1)).astype(np.int64).reshape(2, count)
        padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        for i, (top, left) in enumerate(offsets.T.tolist()):
            x[i] = padded[i, :, top : top + height, left : left + width]
    return x


def decoded(data: LocalData, spec: InputSpec) -> np.ndarray:
    """Raw values [N, ...] of ``data``; image files are read in the input's size."""
    return _decode_images(data.x, spec) if isinstance(data.x, tuple) else data.x


def fit_input(data: LocalData, spec: InputSpec) -> np.ndarray:
    """The examples of ``data`` [N, *input.shape], their values as they are.

    Raises:
        DataError: another shape, or values that the input cannot take.
    """
    if data.symbols is not None and spec.vocabulary:
        check_sizes(data.symbols, spec.vocabulary, where=f"the tokenizer of {data.where}")
    x = decoded(data, spec)
    if x.dtype.kind not in "biuf":
        raise DataError(f"{data.where}: x is {x.dtype}, numbers expected; save it as numbers")
    if spec.dtype == "int64" and (x.dtype.kind == "f" or (spec.vocabulary and _outside(x, spec.vocabulary))):
        raise DataError(f"{data.where}: x must hold symbols 0..{spec.vocabulary - 1}; got {x.dtype} values outside")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{data.where}: x holds values that are not finite; clean the data")
    shape, found = spec.shape, x.shape[1:]
    if found == shape:
        return x
    if spec.layout == "features" and math.prod(found) == math.prod(shape):
        return x.reshape(len(x), *shape)
    if spec.layout == "chw" and shape[0] == 1 and found == shape[1:]:
        return x[:, None]
    if spec.layout == "chw" and found == (*shape[1:], shape[0]):
        return np.ascontiguousarray(np.moveaxis(x, -1, 1))
    mend = "convert the data"
    if spec.layout == "tokens" and len(found) == 1:
        mend = f"give windows of {shape[0]} symbols or of a multiple (data.toml: length = {shape[0]})"
    raise DataError(f"{data.where}: examples have shape {found}, the artifact takes {shape}; {mend}")


def _decode_images(files: tuple[object, ...], spec: InputSpec) -> np.ndarray:
    image_module = pillow()
    if spec.layout != "chw" or spec.shape[0] not in (1, 3):
        raise DataError(f"image folders need a chw input with 1 or 3 channels, the artifact takes {spec.shape}")
    channels, height, width = spec.shape
    x = np.empty((len(files), channels, height, width), np.uint8)
    for i, path in enumerate(files):
        try:
            with image_module.open(path) as image:
                image = image.convert("L" if channels == 1 else "RGB")
                if image.size != (width, height):
                    image = image.resize((width, height), image_module.Resampling.BILINEAR)
                pixels = np.asarray(image, np.uint8)
        except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
            raise DataError(f"{path}: is not a readable image ({error}); replace the file") from error
        x[i] = pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)
    return x


def fit_labels(
    data: LocalData, classes: tuple[str, ...], shape: tuple[int, ...] = (), dtype: np.dtype[Any] | None = None
) -> np.ndarray:
    """Targets [N, *shape] of ``dtype``, int64 where none is given; class names become their indices in ``classes``.

    Raises:
        DataError: another shape, an unknown name, an index outside of the classes.
    """
    dtype = dtype or np.dtype("int64")
    try:
        y = entry(data.y, Y)
    except KeyError:
        raise DataError(
            f"{data.where}: no array ['y'] among {['x', *names_of(data.y)]}; save it with keys x and y"
        ) from None
    if y.dtype.kind in "US":
        names = {name: index for index, name in enumerate(classes)}
        unknown = sorted({str(label) for label in np.unique(y)} - names.keys())
        if unknown:
            raise DataError(
                f"{data.where}: unknown classes {unknown[:5]}, the artifact knows {list(classes)[:20]}; "
                "rename or remove them"
            )
        y = np.asarray([names[str(label)] for label in y])
    if y.ndim == 2 and y.shape[1] == 1 and shape == ():
        y = y[:, 0]
    if y.shape[1:] != shape:
        raise DataError(f"{data.where}: labels have shape {y.shape[1:]}, the artifact takes {shape}; convert them")
    if dtype.kind == "i" and (y.dtype.kind not in "iub" or (classes and _outside(y, len(classes)))):
        raise DataError(
            f"{data.where}: labels are {y.dtype} from {y.min()} to {y.max()}, whole numbers 0..{len(classes) - 1} "
            "expected; map them to the classes"
        )
    return np.ascontiguousarray(y.astype(dtype))


def _targets(data: LocalData, manifest: ArtifactManifest) -> np.ndarray:
    targets = manifest.specs("target")
    dtype = np.dtype(targets[0].dtype if targets else "int64")
    shape = tuple(int(size) for size in targets[0].shape[1:]) if targets else ()
    return fit_labels(data, manifest.classes, shape, dtype)


def _outside(values: np.ndarray, count: int) -> bool:
    return bool(values.size and (values.min() < 0 or values.max() >= count))
