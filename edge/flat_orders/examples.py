"""A device's local data as the native trainer reads it: ranges of ``.npz`` files, and what becomes of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from edge.contracts.augmentation import augmentation
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.flat_orders.archives import StoredArray, stored_arrays
from edge.flat_orders.writing import KINDS, FlatWriter, Unable

_DESCRIPTION = "data.toml"
_OTHER_SUFFIXES = frozenset({".jsonl"})
_WHOLE = frozenset({"int64", "int32", "uint8", "int8", "bool"})


def write_examples(writer: FlatWriter, source: str, manifest: ArtifactManifest) -> int:
    """Where the arrays ``x`` and ``y`` lie, and the manifest's input; how many examples there are.

    Raises:
        Unable: data of another kind, or that do not fit the artifact as they are.
    """
    if manifest.task:
        raise Unable(f"task '{manifest.task}' has batches of more than x and y")
    found = read_arrays(source)
    x, y, spec = found[0::2], found[1::2], manifest.input
    is_last = _fit_input(x[0], spec)
    _fit_labels(y[0], manifest)
    _write_array(writer, x, limit=spec.vocabulary if spec.dtype == "int64" else 0)
    _write_array(writer, y, limit=len(manifest.classes))
    _write_input(writer, spec, channels_last=is_last)
    writer.integer(len(manifest.classes))
    return sum(part.shape[0] for part in x)


def read_arrays(source: str) -> list[StoredArray]:
    """``x`` and ``y`` of the first file of ``source``, of the second, and so on, as many examples as labels in each.

    Raises:
        Unable: data of another kind.
    """
    found: list[StoredArray] = []
    for path in _archives(Path(source)):
        arrays = stored_arrays(path)
        if arrays.keys() != {"x", "y"}:
            raise Unable(f"{source} holds the arrays {sorted(arrays)}, not x and y alone")
        a, b = arrays["x"], arrays["y"]
        if not a.shape or not b.shape or a.shape[0] != b.shape[0] or a.shape[0] == 0:
            raise Unable(f"{path} holds {a.shape} examples with {b.shape} labels")
        found += (a, b)
    for first, parts in ((found[0], found[0::2]), (found[1], found[1::2])):
        for part in parts:
            if (part.dtype, part.shape[1:]) != (first.dtype, first.shape[1:]):
                raise Unable(f"{part.path} and {first.path} differ in type or shape")
    return found


def _archives(path: Path) -> list[Path]:
    if path.is_file() and path.suffix == ".npz":
        return [path]
    if not path.is_dir():
        raise Unable(f"{path} is neither a folder nor an .npz file")
    files = sorted(p for p in path.iterdir() if p.is_file())
    found = [p for p in files if p.suffix == ".npz"]
    if not found or any(p.name == _DESCRIPTION or p.suffix.lower() in _OTHER_SUFFIXES for p in files):
        raise Unable(f"{path} is not a folder of .npz files alone")
    return found


def _fit_input(x: StoredArray, spec: InputSpec) -> bool:
    """Whether the channels are each example's last dimension, and are to come first."""
    if spec.dtype == "int64" and x.dtype not in _WHOLE:
        raise Unable(f"x is {x.dtype}, and the artifact takes symbols")
    found, shape = x.shape[1:], spec.shape
    if found == shape or (spec.layout == "features" and math.prod(found) == math.prod(shape)):
        return False
    if spec.layout == "chw" and shape[0] == 1 and found == shape[1:]:
        return False
    if spec.layout == "chw" and found == (*shape[1:], shape[0]) and spec.dtype == "float32":
        return True
    raise Unable(f"examples have shape {found}, the artifact takes {shape}")


def _fit_labels(y: StoredArray, manifest: ArtifactManifest) -> None:
    targets = manifest.specs("target")
    shape = tuple(int(size) for size in targets[0].shape[1:]) if targets else ()
    if targets and targets[0].dtype != "int64":
        raise Unable(f"its targets are int64, the artifact's {targets[0].dtype}")
    found = y.shape[1:]
    if y.dtype not in _WHOLE or (found != shape and not (found == (1,) and shape == ())):
        raise Unable(f"labels are {y.dtype}{list(found)}, the artifact takes whole numbers {list(shape)}")


def _write_array(writer: FlatWriter, parts: Sequence[StoredArray], *, limit: int) -> None:
    first = parts[0]

    def write(part: StoredArray) -> None:
        writer.text(str(part.path))
        writer.integer(part.offset, part.shape[0])

    writer.integer(KINDS[first.dtype])
    writer.integers(first.shape[1:])
    writer.each(parts, write)
    writer.integer(limit)


def _write_input(writer: FlatWriter, spec: InputSpec, *, channels_last: bool) -> None:
    is_image = spec.layout == "chw"
    if spec.augment and (not is_image or len(spec.shape) != 3):
        raise Unable("only images are augmented")
    writer.integer(KINDS[spec.dtype])
    writer.integers(spec.shape)
    writer.integer(channels_last)
    writer.real(spec.scale)
    writer.integer(math.prod(spec.shape[1:]) if is_image else 1)
    writer.reals(spec.mean)
    writer.reals(spec.std)
    try:
        writer.integer(*augmentation(spec.augment))
    except ValueError as error:
        raise Unable(str(error)) from error
