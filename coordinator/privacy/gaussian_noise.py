"""Gaussian noise from 32 secret bytes: the same bytes give the same noise, and nobody without them can tell it.

A keystream of ChaCha20 stands for uniform bits; pairs of them become normal values by Box and Muller's formula in
float64. What float64 itself leaks (Mironov, "On significance of the least significant bits for differential privacy",
CCS 2012) is not closed; docs/privacy.md says so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import numpy as np

SEED_BYTES = 32
_CHUNK = 1 << 20


def normal(seed: bytes, name: str, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Independent normal values of mean 0, float64 ``shape``; each ``name`` has a stream of its own under ``seed``."""
    count = int(np.prod(shape, dtype=np.int64))
    bits = _Keystream(hashlib.sha256(seed + name.encode()).digest())
    values = np.empty(count + count % 2)
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        # Above 0, so that the logarithm is finite; the largest value that can come is sqrt(2 * 53 * ln 2) = 8.6.
        u = ((np.frombuffer(bits(8 * len(part)), "<u8") >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
        radius, angle = np.sqrt(-2.0 * np.log(u[::2])), 2.0 * np.pi * u[1::2]
        part[::2], part[1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return values[:count].reshape(shape) * deviation


class _Keystream:
    """The bytes of ChaCha20 under ``key``, as many at a time as asked for."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self._encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def __call__(self, count: int) -> bytes:
        return self._encryptor.update(bytes(count))


Differences = dict[str, np.ndarray]


def difference(trained: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray], names: Iterable[str]) -> Differences:
    """Trained minus sent values of ``names``, in float64."""
    return {name: trained[name].astype(np.float64) - sent[name] for name in names}


def norm_of(differences: Mapping[str, np.ndarray]) -> float:
    """Euclidean norm over all entries of all tensors; infinite where it is beyond float64."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(float(np.vdot(value, value)) for value in differences.values()))


def scale_down(differences: Mapping[str, np.ndarray], limit: float) -> tuple[Differences, float]:
    """``differences`` times min(1, limit / norm), and the norm they had.

    Source: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
    FlatClip of Algorithm 1.
    """
    norm = norm_of(differences)
    factor = 1.0 if norm <= limit else limit / norm
    return {name: value * factor for name, value in differences.items()}, norm
