"""Randomness that two agents in two languages draw alike: keyed streams over SplitMix64, and what is drawn from them.

Every draw comes from a stream keyed by what it is for, never from a generator's carried state, so a restart draws
the same. Specified with golden vectors in docs/wire-protocol.md.
Source: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from edge.contracts.tensors import TensorSpec

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_PIECE = 1 << 14
"""Outputs of a stream held at a time while drawing."""


def stream_seed(seed: int, purpose: str, round_index: int = 0, device: str = "") -> int:
    """64-bit seed of the stream for (seed, purpose, round, device).

    The first eight bytes, big-endian, of SHA-256 over ``"<seed>\\n<purpose>\\n<round>\\n<device>"`` in UTF-8.
    """
    key = f"{seed}\n{purpose}\n{round_index}\n{device}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")


def splitmix64(seed: int, count: int) -> np.ndarray:
    """The first ``count`` outputs of SplitMix64 started at ``seed``, as uint64 [count]."""
    import numpy as np

    steps = np.arange(1, count + 1, dtype=np.uint64)
    z = np.uint64(seed & _MASK) + steps * np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniform(seed: int, count: int) -> np.ndarray:
    """``count`` doubles in [0, 1): the top 53 bits of each output divided by 2^53."""
    import numpy as np

    return np.asarray((splitmix64(seed, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def permutation(seed: int, count: int) -> np.ndarray:
    """A Fisher-Yates shuffle of 0..count-1, int64 [count].

    For i = count-1 down to 1, the next output z picks j = z mod (i + 1) and entries i and j are exchanged.
    The modulo bias is below count / 2^64 and is part of the specification.
    """
    import numpy as np

    order = list(range(count))
    if count > 1:
        draws = splitmix64(seed, count - 1)
        bounds = np.arange(count, 1, -1, dtype=np.uint64)
        for i, j in zip(range(count - 1, 0, -1), (draws % bounds).tolist(), strict=True):
            order[i], order[j] = order[j], order[i]
    return np.asarray(order, dtype=np.int64)


def drawn_value(spec: TensorSpec, seed: int, step: int, batch: int) -> np.ndarray:
    """What ``spec`` of role ``draw`` is in a step: the same for a restarted assignment, on every runtime.

    The stream is that of (seed, "draw", step, name). Each of its outputs gives two lanes of 32 bits, the low one first;
    the top 24 bits of a lane are k. A ``float32`` draw is k / 2^24, a ``bool`` one k < floor(2^24 probability + 0.5).

    Args:
        seed: the order's ``data_seed``.
        step: number of the step within the assignment, from 0.
        batch: examples of the whole batch, which micro-batches share out.
    """
    return _drawn(spec, stream_seed(seed, "draw", step, spec.name), batch)


def self_test_value(
    spec: TensorSpec, seed: int, batch: int, *, high: int = 2, bias: float = 0.0, gain: float = 1.0
) -> np.ndarray:
    """The value tensor ``spec`` takes in an artifact's self-test (formula ``splitmix64-uniform/2``; ``/1`` without
    ``bias`` and ``gain``).

    With u drawn from the stream (seed, "self-test", 0, name):

    - parameters and frozen tensors of two or more dims: gain (2u - 1) / sqrt(product of shape[1:]);
    - one-dimensional ones named ``...weight``: 0.75 + 0.5 u; other one-dimensional or scalar ones:
      bias + 0.1 (2u - 1);
    - buffers: ``running_var`` 0.5 + u, integer buffers 0, others 0.1 (2u - 1);
    - slots and accumulators: 0;
    - draws: as :func:`drawn_value`, from the stream above;
    - float inputs: sqrt(3) (2u - 1), unit variance; integer inputs and targets: floor(u * high);
    - mapped tensors: one-dimensional ones named ``...weight`` and ``...bias`` as above, without ``bias``; those named
      ``...#scale`` gain (0.75 + 0.5 u) / 2032 of one dimension and / 128 of two; others of whole numbers are the bytes
      of the stream's outputs, the low one first; others of floats (2 k / 2^24 - 1) / 16 with k as of a draw;
    - label masks and gradient masks: 1; a mask with a capacity c of n entries keeps c: those i for which
      floor((i + 1) c / n) > floor(i c / n).

    Args:
        batch: size of the batch dimension.
        high: vocabulary (integer inputs) or number of classes (targets).
        bias, gain: of the manifest's self-test.
    """
    import numpy as np

    shape = tuple(batch if size == "batch" else int(size) for size in spec.shape)
    dtype = np.dtype(spec.dtype)
    if spec.role in ("slot", "accumulator") or (spec.role == "buffer" and dtype.kind != "f"):
        return np.zeros(shape, dtype)
    if spec.role == "grad_mask" and spec.capacity:
        count = int(np.prod(shape, dtype=np.int64))
        reached = np.arange(count + 1, dtype=np.int64) * min(spec.capacity, count) // count
        return np.asarray(np.diff(reached) > 0).reshape(shape)
    if spec.role in ("label_mask", "grad_mask"):
        return np.ones(shape, dtype)
    if is_in_pieces(spec):
        value, start = np.empty(math.prod(shape), dtype), 0
        for piece in mapped_pieces(spec, seed, gain):
            value[start : start + piece.size] = piece
            start += piece.size
        return value.reshape(shape)
    if spec.role == "draw":
        return _drawn(spec, stream_seed(seed, "self-test", 0, spec.name), batch)
    u = uniform(stream_seed(seed, "self-test", 0, spec.name), int(np.prod(shape, dtype=np.int64))).reshape(shape)
    if spec.role in ("input", "target"):
        value = np.sqrt(3.0) * (2 * u - 1) if dtype.kind == "f" else np.floor(u * high)
    elif spec.role == "mapped" and spec.name.endswith("#scale"):
        value = gain * ((0.75 + 0.5 * u) / (2032.0 if len(shape) == 1 else 128.0))
    elif spec.role == "mapped" and spec.name.endswith("weight"):
        value = 0.75 + 0.5 * u
    elif spec.role == "buffer" and spec.name.endswith("running_var"):
        value = 0.5 + u
    elif spec.role in ("parameter", "frozen") and len(shape) >= 2:
        value = gain * ((2 * u - 1) / np.sqrt(max(1.0, float(np.prod(shape[1:])))))
    elif spec.role in ("parameter", "frozen") and spec.name.endswith("weight"):
        value = 0.75 + 0.5 * u
    elif spec.role in ("parameter", "frozen"):
        value = bias + 0.1 * (2 * u - 1)
    else:
        value = 0.1 * (2 * u - 1)
    return np.asarray(value.astype(dtype))


def is_in_pieces(spec: TensorSpec) -> bool:
    """Whether ``spec`` is a matrix of a base, which :func:`mapped_pieces` gives without having it whole."""
    return spec.role == "mapped" and len(spec.shape) > 1 and not spec.name.endswith("#scale")


def mapped_pieces(spec: TensorSpec, seed: int, gain: float) -> Iterator[np.ndarray]:
    """What :func:`self_test_value` gives of a matrix of a base, in pieces [n] in the order of its bytes."""
    import numpy as np

    stream, dtype = stream_seed(seed, "self-test", 0, spec.name), np.dtype(spec.dtype)
    count = math.prod(int(size) for size in spec.shape)
    per_output = 8 if dtype.kind != "f" else 2
    for start in range(0, count, per_output * _PIECE):
        size = min(per_output * _PIECE, count - start)
        outputs = splitmix64(stream + start // per_output * _GAMMA, -(-size // per_output)).astype("<u8")
        if dtype.kind != "f":
            yield outputs.view(dtype)[:size]
        else:
            top = (outputs.view("<u4")[:size] >> np.uint32(8)).astype(np.float64)
            yield (gain * (2.0 * top * 2.0**-24 - 1.0) / 16.0).astype(dtype)


def _drawn(spec: TensorSpec, seed: int, batch: int) -> np.ndarray:
    """A draw from the stream that starts at ``seed``, made piece by piece: the whole stream is eight times a mask."""
    import numpy as np

    shape = tuple(batch if size == "batch" else int(size) for size in spec.shape)
    value = np.empty(shape, spec.dtype)
    flat = value.reshape(-1)
    below = np.uint32(int(spec.probability * 2.0**24 + 0.5))
    for start in range(0, flat.size, 2 * _PIECE):
        part = flat[start : start + 2 * _PIECE]
        outputs = splitmix64(seed + start // 2 * _GAMMA, (part.size + 1) // 2)
        top = outputs.astype("<u8").view("<u4")[: part.size] >> np.uint32(8)
        part[:] = top < below if spec.dtype == "bool" else top.astype(np.float32) * np.float32(2.0**-24)
    return value
