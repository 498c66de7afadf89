"""WAV files: PCM of 8, 16, 24 or 32 bits, as samples of a fixed length."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.contracts.errors import DataError

SUFFIXES = frozenset({".wav"})
LENGTH = 16_000
"""Samples of an example where nothing else is said: a second at 16 kHz."""


def read_sounds(paths: Sequence[Path], length: int) -> np.ndarray:
    """Samples [N, length] float32 in [-1, 1): the mean of the channels, cut at the end or filled with zeros.

    Raises:
        DataError: a file that is not PCM WAV, or of another sample rate than the first; it is named.
    """
    x = np.zeros((len(paths), length), np.float32)
    first_rate = 0
    for row, path in zip(x, paths, strict=True):
        try:
            with wave.open(str(path), "rb") as file:
                rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
                data = file.readframes(min(file.getnframes(), length))
        except (OSError, wave.Error, EOFError) as error:
            raise DataError(f"{path}: is not a readable PCM WAV file ({error}); replace the file") from error
        first_rate = first_rate or rate
        if rate != first_rate:
            raise DataError(f"{path}: {rate} samples a second, {paths[0]} has {first_rate}; give all the same rate")
        samples = _samples(data[: len(data) // (width * channels) * width * channels], width)
        row[: len(samples) // channels] = samples.reshape(-1, channels).mean(1)
    return x


def _samples(data: bytes, width: int) -> np.ndarray:
    """PCM of ``width`` bytes as float32 in [-1, 1). 8 bits are unsigned, the others signed, little-endian."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    raw = np.frombuffer(data, np.uint8).reshape(-1, width)
    whole = np.zeros((len(raw), 4), np.uint8)
    whole[:, 4 - width :] = raw
    return (whole.reshape(-1).view("<i4").astype(np.float64) / 2**31).astype(np.float32)
