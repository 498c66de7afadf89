"""What evaluators read of a model, between processes: logits, or sums of batches, bit for bit.

Files of tensors have no float64; sums, which are, travel as the int64 of the same bits.
"""

from __future__ import annotations

import numpy as np

from edge.contracts.tensor_file import decode_tensors, encode_tensors
from edge.training.records import beside_x, entry, names_of


def encoded_outputs(outputs: np.ndarray) -> bytes:
    """Bytes of logits or records, neither of which holds whole numbers."""
    arrays = {name: entry(outputs, name) for name in names_of(outputs)}
    return encode_tensors({n: v.view(np.int64) if v.dtype == np.float64 else v for n, v in arrays.items()})


def decoded_outputs(data: bytes) -> np.ndarray:
    """What :func:`encoded_outputs` was given."""
    arrays = decode_tensors(data, where="scores")
    arrays = {n: v.view(np.float64) if v.dtype == np.int64 else v for n, v in arrays.items()}
    return beside_x(arrays, len(next(iter(arrays.values()))))
