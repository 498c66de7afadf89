"""The base file of a language model, written one tensor at a time, and held against what devices were given before.

Its bytes are those that :func:`edge.contracts.tensor_file.encode_tensors` gives of the same tensors, so that equal
values have one digest wherever they were quantised.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge.contracts.errors import ConfigError, StoreFull
from edge.contracts.tensors import TensorSpec
from export.language.base_weights import base_specs, held, matrices

if TYPE_CHECKING:
    from export.language.causal_model import CausalModel

_NAMES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}
_PIECE = 1 << 22
"""Elements that are quantised at a time."""


def base_bytes(module: CausalModel) -> int:
    """Size of the module's base file."""
    header, specs = _layout(module)
    return len(header) + sum(spec.byte_count() for spec in specs)


def write_base(path: Path, module: CausalModel, values: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write the base file of ``module``, in its precision, to ``path``.

    Args:
        module: on the meta device; names and shapes alone are read.
        values: (name, float32 array) of every tensor, in any order.

    Raises:
        ConfigError: values that are not the module's: all of what does not fit, by name.
        StoreFull: the disk does not take the file.
    """
    header, specs = _layout(module)
    places, at = {}, len(header)
    for spec in specs:
        places[spec.name] = at
        at += spec.byte_count()
    shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
    missing, quantised = dict(shapes), matrices(module)
    problems = []
    try:
        with path.open("wb") as file:
            file.write(header)
            file.truncate(at)
            for name, value in values:
                if missing.pop(name, None) != tuple(value.shape):
                    expected = f"{list(shapes[name])} expected" if name in shapes else "the model has no such tensor"
                    problems.append(f"'{name}' {list(value.shape)}, {expected}")
                    continue
                for part, piece in _pieces(name, value, module, name in quantised):
                    file.seek(places[part])
                    places[part] += file.write(np.ascontiguousarray(piece).data)
    except OSError as error:
        raise StoreFull(f"{path.parent}: the base file needs {at} bytes ({error.strerror}); free disk space") from error
    problems += [f"'{name}' is not there, {list(shape)} expected" for name, shape in missing.items()]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ConfigError([f"$.model.build: values that are not the model's: {'; '.join(problems[:4])}{more}"])


def _pieces(name: str, value: np.ndarray, module: CausalModel, is_quantised: bool) -> Iterable[tuple[str, np.ndarray]]:
    """(Tensor of the file, some of its rows), rows in order."""
    if not is_quantised:
        yield name, np.asarray(value, np.float32)
        return
    step = max(1, _PIECE // value.shape[1])
    for first in range(0, len(value), step):
        yield from held(name, np.asarray(value[first : first + step], np.float32), module.base_precision).items()


def _layout(module: CausalModel) -> tuple[bytes, list[TensorSpec]]:
    """The file's header, and its tensors in the order of their bytes."""
    specs = sorted(base_specs(module), key=lambda spec: (-np.dtype(spec.dtype).itemsize, spec.name))
    entries, at = {}, 0
    for spec in specs:
        end = at + spec.byte_count()
        entries[spec.name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(dict(sorted(entries.items())), separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return struct.pack("<Q", len(text)) + text, specs
