"""The base of a language model's self-test: formula values written to a file piece by piece, and mapped.

In memory it would be as large as the base itself: 128 MB of GPT-2 small in int8, on devices that train it in less.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from edge.contracts.errors import StoreFull
from edge.contracts.manifest import SelfTest
from edge.contracts.streams import is_in_pieces, mapped_pieces, self_test_value
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import TensorSpec
from edge.runtimes.weights_file import WeightsFile

_NAMES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}
_RESERVE_BYTES = 16 << 20
"""Left free on the disk, as a store leaves it."""
_SUFFIX = ".tmp"
"""Of files that a store removes when it is opened: those of a trainer that was killed."""


@contextlib.contextmanager
def formula_weights(
    specs: Sequence[TensorSpec], test: SelfTest, state: Mapping[str, np.ndarray], folder: Path | None
) -> Iterator[WeightsFile]:
    """``state``, and the self-test's values of the mapped tensors ``specs``, as files that are gone afterwards: who has
    mapped them keeps them as long as it does.

    Args:
        folder: for the files, on a disk; None: that of temporary files.

    Raises:
        StoreFull: they do not fit there.
    """
    paths: list[Path] = []
    try:
        for suffix in ("-state", "-base"):
            descriptor, name = tempfile.mkstemp(suffix + _SUFFIX, "self-test", folder)
            os.close(descriptor)
            paths.append(Path(name))
        weights, base = paths
        weights.write_bytes(encode_tensors(state))
        _write(base, specs, test)
        yield WeightsFile(weights, where="self-test", constants=base)
    except OSError as error:
        where = folder or Path(tempfile.gettempdir())
        raise StoreFull(f"{where}: the self-test's base is not written ({error}); free disk space") from error
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _write(path: Path, specs: Sequence[TensorSpec], test: SelfTest) -> None:
    """A safetensors file, the widest types first, so that every tensor is aligned."""
    ordered = sorted(specs, key=lambda spec: (-np.dtype(spec.dtype).itemsize, spec.name))
    header, at = {}, 0
    for spec in ordered:
        end = at + spec.byte_count()
        header[spec.name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [at, end]}
        at = end
    free = shutil.disk_usage(path.parent).free - _RESERVE_BYTES
    if at > free:
        raise StoreFull(
            f"{path.parent}: the self-test's base needs {at} bytes for a moment, {max(0, free)} can be put there; free "
            "disk space"
        )
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for spec in ordered:
            whole = () if is_in_pieces(spec) else (_value(spec, test),)
            for piece in whole or mapped_pieces(spec, test.seed, test.gain):
                file.write(np.ascontiguousarray(piece).data)


def _value(spec: TensorSpec, test: SelfTest) -> np.ndarray:
    return self_test_value(spec, test.seed, test.batch, bias=test.bias, gain=test.gain)
