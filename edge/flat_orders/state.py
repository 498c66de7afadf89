"""The state tensors of an order: which there are, and in which file each one's first value lies."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensor_file import read_header
from edge.contracts.tensors import DTYPE_BYTES, TEACHER, TensorSpec, is_carried
from edge.flat_orders.writing import KINDS, FlatWriter, Unable

_PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class State:
    """Tensors by number, numbered as they are asked for; those that no step needs are not there.

    Args:
        files: paths of the order's weights, and of what changes rarely; a later one counts where both have a tensor.
    """

    def __init__(self, manifest: ArtifactManifest, files: Sequence[str]) -> None:
        used = {n for p in manifest.programs for n in (*p.inputs, *(o.tensor for o in p.outputs))}
        self._specs = {spec.name: spec for spec in manifest.tensors if is_carried(spec) and spec.name in used}
        self._stored: dict[str, Stored] = {}
        for path in files:
            self._stored |= stored_tensors(path)
        self._numbers: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def spec(self, name: str) -> TensorSpec:
        """What the artifact says of tensor ``name``.

        Raises:
            Unable: no step has it, or it is held as kept entries.
        """
        if name not in self._specs:
            raise Unable(f"no program carries a tensor '{name}'")
        spec = self._specs[name]
        if spec.capacity:
            raise Unable(f"'{name}' is held as kept entries")
        return spec

    def number(self, name: str) -> int:
        """Of tensor ``name``.

        Raises:
            Unable: as :meth:`spec`.
        """
        self.spec(name)
        return self._numbers.setdefault(name, len(self._numbers))

    def number_if_there(self, name: str) -> int:
        """Of tensor ``name``; -1 where no step has it."""
        return self.number(name) if name in self else -1

    def pieces(self, name: str) -> Iterator[bytes]:
        """The first value of tensor ``name``, as it lies in its file.

        Raises:
            Unable: it is not there as it is; OSError: it cannot be read.
        """
        spec = self.spec(name)
        stored, left = self._source(spec), spec.byte_count()
        if stored is None:
            raise Unable(f"'{name}' is not among the weights")
        with Path(stored.path).open("rb") as file:
            file.seek(stored.offset)
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                left -= len(piece)
                yield piece

    def write(self, writer: FlatWriter) -> None:
        """Every tensor that has a number, and where its first value is from: slots that did not come become zero.

        Raises:
            Unable: one of them is not there as it is, or is another.
        """

        def write(name: str) -> None:
            spec = self._specs[name]
            stored = self._source(spec)
            writer.integer(KINDS[spec.dtype])
            writer.integers([int(size) for size in spec.shape])
            writer.text("" if stored is None else stored.path)
            writer.integer(0 if stored is None else stored.offset)

        writer.each(self._numbers, write)

    def _source(self, spec: TensorSpec) -> Stored | None:
        is_copy = spec.role == "teacher" and spec.name not in self._stored
        stored = self._stored.get(spec.name.removesuffix(TEACHER) if is_copy else spec.name)
        if stored is None:
            if spec.role in ("slot", "accumulator"):
                return None
            raise Unable(f"{spec.role} '{spec.name}' is not among the weights as it is")
        if (stored.dtype, stored.shape) != (spec.dtype, tuple(spec.shape)):
            raise Unable(f"'{spec.name}' among the weights is {stored.dtype}{list(stored.shape)}")
        return stored


def stored_tensors(path: str) -> Mapping[str, Stored]:
    """Where the tensors of a safetensors file lie.

    Raises:
        Unable: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file, contextlib.closing(_mapped(file.fileno())) as mapped:
            with memoryview(mapped) as view:
                header, start = read_header(view, where=path)
    except (OSError, ValueError, ArtifactCorrupt) as error:
        raise Unable(f"{path} cannot be read ({error})") from error
    return {name: Stored(path, dtype, shape, start + begin) for name, (dtype, shape, begin, _) in header.items()}


def _mapped(file: int) -> mmap.mmap:
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ)


def in_file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """As an update has them: the widest dtypes first, names sorted within one."""
    return sorted(specs, key=lambda spec: (-DTYPE_BYTES[spec.dtype], spec.name))
