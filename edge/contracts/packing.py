"""How masked tensors travel: the kept values alone, and the mask apart from them, once for as long as it holds.

``<name>#kept`` [kept entries, in C order] stands for tensor ``<name>`` whose other entries are 0 under its mask. A mask
``<name>#mask`` travels as ``<name>#mask_bits`` [ceil(n / 8)] uint8, most significant bit first, or, where that is
shorter, as ``<name>#mask_places`` [kept entries] int32, flat indices; both with ``<name>#mask_shape`` int64.
Source: PruneFL, section V; its pairs of 16-bit row and column cost the same 32 bits as one flat index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge.contracts.errors import ArtifactCorrupt

if TYPE_CHECKING:
    import numpy as np

KEPT, MASK = "#kept", "#mask"
BITS, PLACES, SHAPE = "#mask_bits", "#mask_places", "#mask_shape"


def pack_mask(name: str, mask: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors that carry the mask of tensor ``name``: bits, or places where fewer than one entry in 32 is kept."""
    import numpy as np

    flat = np.asarray(mask, bool).reshape(-1)
    shape = {name + SHAPE: np.array(mask.shape, np.int64)}
    places = np.flatnonzero(flat)
    if places.size * 4 < (flat.size + 7) // 8 and flat.size < 2**31:
        return {name + PLACES: places.astype(np.int32), **shape}
    return {name + BITS: np.packbits(flat), **shape}


def unpack_mask(name: str, tensors: Mapping[str, np.ndarray], *, where: str) -> np.ndarray:
    """The boolean mask of tensor ``name``.

    Raises:
        ArtifactCorrupt: there is none, or its parts do not fit each other.
    """
    import numpy as np

    if name + SHAPE not in tensors or not (name + BITS in tensors) ^ (name + PLACES in tensors):
        raise ArtifactCorrupt(f"{where}: no mask of '{name}' among {len(tensors)} tensors; send it again")
    shape = tuple(int(size) for size in tensors[name + SHAPE])
    if any(size < 0 or size > 2**31 for size in shape) or len(shape) > 8:
        raise ArtifactCorrupt(f"{where}: the mask of '{name}' says shape {shape[:8]}; send it again")
    count = 1
    for size in shape:
        count *= size
    if name + BITS in tensors:
        bits = tensors[name + BITS]
        if bits.dtype != np.uint8 or bits.shape != ((count + 7) // 8,):
            raise ArtifactCorrupt(f"{where}: mask of '{name}' has {bits.size} bytes for {count} entries; send it again")
        return np.unpackbits(bits, count=count).astype(bool).reshape(shape)
    places = tensors[name + PLACES]
    # Fewer than one in 32, so the entries the shape promises are bounded by the bytes that came.
    if places.dtype != np.int32 or places.ndim != 1 or count > 2**31 or (places.size and int(places.max()) >= count):
        raise ArtifactCorrupt(f"{where}: mask of '{name}' points outside its {count} entries; send it again")
    if places.size and (int(places[0]) < 0 or (np.diff(places) <= 0).any()):
        raise ArtifactCorrupt(f"{where}: mask of '{name}' is not in rising order; send it again")
    mask = np.zeros(count, bool)
    mask[places] = True
    return mask.reshape(shape)


def kept_values(value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The entries of ``value`` under ``mask``, C order."""
    result: np.ndarray = value[mask]
    return result


def expand(kept: np.ndarray, mask: np.ndarray, target: np.ndarray, *, where: str) -> np.ndarray:
    """``target`` [the mask's shape] filled with the kept values, 0 elsewhere.

    Raises:
        ArtifactCorrupt: another number of values than the mask keeps.
    """
    if kept.shape != (int(mask.sum()),) or target.shape != mask.shape:
        raise ArtifactCorrupt(f"{where}: {kept.size} values for {int(mask.sum())} kept entries; send it again")
    target.fill(0)
    target[mask] = kept
    return target


def unpacked(
    tensors: Mapping[str, np.ndarray], masks: Mapping[str, np.ndarray], *, where: str
) -> dict[str, np.ndarray]:
    """Every ``<name>#kept`` as the whole ``<name>``, all else as it is.

    Args:
        masks: by tensor name.

    Raises:
        ArtifactCorrupt: kept values without a mask, or of another number.
    """
    import numpy as np

    whole = {}
    for name, value in tensors.items():
        base = name.removesuffix(KEPT)
        if base == name:
            whole[name] = value
            continue
        if base not in masks:
            raise ArtifactCorrupt(f"{where}: kept values of '{base}', which has no mask; send it again")
        whole[base] = expand(value, masks[base], np.empty(masks[base].shape, value.dtype), where=where)
    return whole
