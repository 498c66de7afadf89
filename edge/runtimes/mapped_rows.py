"""Rows of a mapped table, read from its file: a gather through the mapping would make much more of it resident.

A fault on one row maps what the kernel has in memory around it, 64 kB as it is shipped and 1 MB on some machines:
measured, 90 of 168 MB of a table for 128 rows of 640 bytes (Linux 6.18, ext4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.tensors import ROWS, TensorSpec
from edge.runtimes.weights_file import WeightsFile


def row_values(
    specs: Iterable[TensorSpec], base: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What the inputs ``specs`` of role ``rows`` are fed, by name.

    Raises:
        DeviceRefused: as :func:`rows_of`.
    """
    return {spec.name: rows_of(spec.name, base, feeds) for spec in specs}


def rows_of(name: str, base: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of input ``<table>#rows:<index>`` the rows of ``base[table]`` at ``feeds[index]``.

    Returns:
        [*shape of the index, *shape of a row], the table's dtype.

    Raises:
        DeviceRefused: a number that is no row of the table.
    """
    table, _, index = name.rpartition(ROWS)
    places = np.maximum(feeds[index], 0)
    shape = base.described(table)[0] if isinstance(base, WeightsFile) else base[table].shape
    if places.size and places.max() >= shape[0]:
        raise DeviceRefused(
            f"'{index}' has symbol {places.max()}, the model knows 0 to {shape[0] - 1}; use the tokenizer that the "
            "model was made with"
        )
    distinct, inverse = np.unique(places, return_inverse=True)
    rows = base.read_rows(table, distinct) if isinstance(base, WeightsFile) else base[table][distinct]
    return np.ascontiguousarray(rows[inverse.reshape(places.shape)])
