"""All devices' values of an entry at once, for rules that need them: the memory of one model, the space of a file.

Every update is written to an unnamed temporary file, in the shapes of the whole tensors, NaN where the device holds
nothing; values themselves are finite. The result is made in tiles of entries. The file is gone with the process.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.parts import check_parts, place_of, weights_of
from edge.contracts.errors import StoreFull

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice
    from coordinator.submodels.values import Tensors

TILE_BYTES = 32 * 2**20
"""Of the values in memory at once; rules make a few arrays of that size from them."""

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From values [entries, devices], rising, NaN last, and counts [entries] of those that are not NaN, to [entries]."""


@dataclass(frozen=True)
class Spilled:
    """Where one device's tensors lie in the file, and with which weights."""

    offsets: Mapping[str, int]
    weights: Mapping[str, float]


class SpilledValues:
    """The updates of a cohort, on disk.

    Args:
        reference: the tensors aggregated into.
        folder: where the file is made; None = where temporary files are.

    Attributes:
        devices: in the order they were added.
        coverage: how many of them hold each entry, by tensor; one number where all hold the whole of it alike.
    """

    def __init__(self, reference: Tensors, folder: Path | None = None) -> None:
        self.reference = reference
        self.devices: list[Spilled] = []
        self.coverage: dict[str, np.ndarray] = {name: np.zeros((), np.int32) for name in reference}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._handle, path = tempfile.mkstemp(dir=folder, prefix="spilled-")
        os.unlink(path)
        weakref.finalize(self, os.close, self._handle)
        self._end = 0

    def add(
        self,
        tensors: Tensors,
        weight: float | Mapping[str, float],
        *,
        where: str,
        slices: Mapping[str, Slice] | None = None,
        rows: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """As :meth:`coordinator.aggregation.accumulator.Accumulator.add`."""
        slices, rows = slices or {}, rows or {}
        weights = weights_of(tensors, weight)
        check_parts(self.reference, tensors, weights, slices, where=where)
        offsets = {}
        for name, value in tensors.items():
            if weights[name] == 0:
                continue
            offsets[name] = self._end
            shape, kept, owned_rows = self.reference[name].shape, slices.get(name), rows.get(name)
            whole = np.asarray(value, self.dtype(name))
            if kept is None and owned_rows is None:
                self.coverage[name] += 1
            else:
                place, owned = place_of(shape, kept, owned_rows)
                if self.coverage[name].shape != shape:
                    self.coverage[name] = np.full(shape, self.coverage[name])
                self.coverage[name][place] += 1
                whole = np.full(shape, np.nan, self.dtype(name))
                whole[place] = value if owned is None else value[owned]
            self._write(np.ascontiguousarray(whole).reshape(-1).view(np.uint8).data, where)
        self.devices.append(Spilled(offsets, weights))

    def dtype(self, name: str) -> np.dtype[np.floating]:
        """What tensor ``name`` is spilled as: float32, or float64 where that would lose bits."""
        kind = self.reference[name].dtype
        return np.dtype(np.float32 if kind.kind == "f" and kind.itemsize <= 4 else np.float64)

    def holders(self, name: str) -> list[int]:
        """Numbers of the devices that sent any of tensor ``name``."""
        return [number for number, device in enumerate(self.devices) if name in device.offsets]

    def tiles(self, name: str, devices: Sequence[int]) -> Iterator[tuple[int, int, np.ndarray]]:
        """(First entry, end, values [devices, entries]) over the flat tensor; NaN where a device holds nothing.

        The array is this object's and holds other values at the next turn.
        """
        dtype, size = self.dtype(name), self.reference[name].size
        width = max(1, min(size, TILE_BYTES // (dtype.itemsize * max(1, len(devices)))))
        values = np.empty((len(devices), width), dtype)
        for start in range(0, size, width):
            end = min(size, start + width)
            for row, number in zip(values, devices, strict=True):
                offset = self.devices[number].offsets.get(name)
                if offset is None:
                    row[: end - start] = np.nan
                else:
                    os.preadv(self._handle, [row[: end - start]], offset + start * dtype.itemsize)
            yield start, end, values[:, : end - start]

    def _write(self, data: memoryview, where: str) -> None:
        while data:
            try:
                written = os.pwrite(self._handle, data, self._end)
            except OSError as error:
                raise StoreFull(
                    f"{where}: a robust rule keeps every update of a round on disk and could not keep this one "
                    f'({error}); free space beside the run\'s blobs, or take rule = "mean"'
                ) from error
            self._end += written
            data = data[written:]

    def is_covered(self, name: str, least: int) -> np.ndarray:
        """Entries of the flat tensor that ``least`` devices hold, bool; all devices where they are fewer."""
        enough = self.coverage[name] >= min(least, len(self.devices))
        return np.broadcast_to(enough, self.reference[name].shape).reshape(-1)

    def combined(
        self, combine: Combine, devices: Collection[int] | None = None, *, least: int = 1
    ) -> dict[str, np.ndarray]:
        """Every entry from the sorted values of those who hold it; the others keep the reference's bits.

        Args:
            devices: numbers of those that count; None = all.
            least: devices, of all, that have to hold an entry: whoever is alone with one would have the only say.
        """
        result = {}
        for name, before in self.reference.items():
            holders = [number for number in self.holders(name) if devices is None or number in devices]
            if not holders:
                result[name] = before
                continue
            after, covered = before.reshape(-1).copy(), self.is_covered(name, least)
            for start, end, values in self.tiles(name, holders):
                rising = np.sort(np.ascontiguousarray(values.T), axis=1)
                counts = len(holders) - np.count_nonzero(np.isnan(rising), axis=1)
                with np.errstate(invalid="ignore"):
                    found = combine(rising, counts)
                held = (counts > 0) & covered[start:end]
                put_entries(after[start:end], found, held)
            result[name] = after.reshape(before.shape)
        return result


def put_entries(target: np.ndarray, found: np.ndarray, held: np.ndarray) -> None:
    """Into ``target`` what was found for the entries held, in its dtype, integers rounded."""
    values = found[held]
    target[held] = (np.rint(values) if target.dtype.kind in "iu" else values).astype(target.dtype)
