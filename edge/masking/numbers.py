"""An update as whole numbers modulo 2^32 under masks, and a sum of such updates without them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.masking import WEIGHT, Masking
from edge.masking.keys import keystream
from edge.masking.seeds import MaskSeeds

_PIECE = 1 << 16


def masked_update(
    names: Sequence[str],
    trained: Callable[[str], np.ndarray],
    received: Mapping[str, np.ndarray],
    masking: Masking,
    seeds: MaskSeeds,
    *,
    num_examples: int,
) -> dict[str, np.ndarray]:
    """The masked update of ``names``, int32, with its weight as a further entry.

    Args:
        trained: the present value of a tensor.
        received: the values that were trained from.

    Raises:
        DeviceRefused: a value does not fit the order's range.
    """
    weight = min(num_examples, masking.max_weight) if masking.is_weighted else 1
    factor = 1.0
    if masking.clip_norm:
        with np.errstate(over="ignore"):
            pieces = (piece for name in names for _, piece in _differences(trained(name), received[name]))
            norm = math.sqrt(sum(float(np.vdot(piece, piece)) for piece in pieces))
        factor = min(1.0, masking.clip_norm / norm) if norm else 1.0
    update = {}
    # Towards zero under a clip norm, so that rounding never makes the difference longer than it.
    rounded = np.trunc if masking.clip_norm else np.rint
    for name in names:
        value = trained(name)
        whole = np.empty(value.size, np.uint32)
        for start, piece in _differences(value, received[name]):
            piece *= factor * weight / masking.step
            rounded(piece, out=piece)
            largest = float(np.max(np.abs(piece), initial=0.0))
            if not largest <= masking.largest:
                raise DeviceRefused(
                    f"'{name}' moved by {largest * masking.step / weight:.3g} in one entry, the order has room for "
                    f"{masking.largest * masking.step / weight:.3g}; raise $.privacy.mask-range or lower the learning "
                    "rate"
                )
            whole[start : start + piece.size] = piece.astype(np.int64).astype(np.uint32)
        update[name] = _with_masks(whole.reshape(value.shape), name, seeds)
    update[WEIGHT] = _with_masks(np.asarray([weight], np.uint32), WEIGHT, seeds)
    return {name: value.view(np.int32) for name, value in update.items()}


def add_masks(total: np.ndarray, name: str, seeds: Iterable[bytes], *, sign: int) -> None:
    """Add (sign 1) or take off (-1) the masks of ``seeds`` for tensor ``name`` in place.

    Args:
        total: uint32, C-contiguous.
    """
    flat = total.reshape(-1)
    for seed in seeds:
        stream = keystream(seed, name)
        for start in range(0, flat.size, _PIECE):
            piece = flat[start : start + _PIECE]
            mask = np.frombuffer(stream(4 * piece.size), "<u4")
            if sign > 0:
                piece += mask
            else:
                piece -= mask


def signed(total: np.ndarray) -> np.ndarray:
    """A sum modulo 2^32 as the whole numbers it stands for, int64."""
    return total.view(np.int32).astype(np.int64)


def _with_masks(value: np.ndarray, name: str, seeds: MaskSeeds) -> np.ndarray:
    add_masks(value, name, seeds.added, sign=1)
    add_masks(value, name, seeds.removed, sign=-1)
    return value


def _differences(trained: np.ndarray, received: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(Place, float64 difference) of one piece after the other: a device has no room for all of it at once."""
    after, before = np.ascontiguousarray(trained).reshape(-1), np.ascontiguousarray(received).reshape(-1)
    for start in range(0, after.size, _PIECE):
        yield start, after[start : start + _PIECE].astype(np.float64) - before[start : start + _PIECE]
