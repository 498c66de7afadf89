"""Steps that move a part of the state: the leading entries of tensors, as if they were tensors of their own.

A program of a part (FjORD's widths, Split-Mix's atoms) reads whole tensors and gives whole gradients; which entries it
is of travels with the artifact in a small file. All others keep their bits: no gradient, no momentum, no decay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import numpy as np

from edge.contracts.errors import ArtifactCorrupt

FILE_NAME = "parts.json"

Sizes = Mapping[str, tuple[int, ...]]
"""Tensor -> leading sizes, of the tensors that take part narrower than they are."""


def parts_to_bytes(sizes: Mapping[str, Sizes]) -> bytes:
    """JSON of the sizes by program."""
    return msgspec.json.encode(sizes, order="deterministic")


def parts_from_bytes(data: bytes) -> dict[str, dict[str, tuple[int, ...]]]:
    """Sizes by program.

    Raises:
        ArtifactCorrupt: they cannot be read.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, dict[str, tuple[int, ...]]])
    except msgspec.MsgspecError as error:
        raise ArtifactCorrupt(f"{FILE_NAME} of the artifact cannot be read ({error}); fetch it again") from error


def leading(name: str, value: np.ndarray, sizes: Sizes) -> np.ndarray:
    """The part of tensor ``name`` (a parameter, or what belongs to one: ``weight#momentum``), a view."""
    wanted = sizes.get(name.partition("#")[0])
    return value if wanted is None else value[tuple(slice(0, size) for size in wanted)]


@contextmanager
def moved_parts(
    state: Mapping[str, np.ndarray], moved: Mapping[str, object], sizes: Sizes
) -> Iterator[dict[str, np.ndarray]]:
    """``state`` with contiguous parts of what belongs to ``moved`` parameters; they are put back at the end."""
    narrow = {n for n in state if (base := n.partition("#")[0]) in sizes and base in moved}
    parts = {n: leading(n, v, sizes).copy() if n in narrow else v for n, v in state.items()}
    yield parts
    for name in narrow:
        leading(name, state[name], sizes)[...] = parts[name]
