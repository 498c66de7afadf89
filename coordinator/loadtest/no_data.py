"""The data of a load test's coordinator: a few examples to evaluate on, none of a real set held in memory."""

from __future__ import annotations

from pathlib import Path

from coordinator.data.datasets import Dataset

FEATURES, CLASSES, EXAMPLES = 64, 10, 20


def few_examples(path: Path | None, seed: int, holdout: float) -> Dataset:
    """Twenty examples [64] of noise in two halves, drawn by ``seed``; what is scored on them means nothing."""
    import numpy as np

    draws = np.random.default_rng(seed)
    x = draws.uniform(0.0, 1.0, (EXAMPLES, FEATURES)).astype(np.float32)
    y = np.arange(EXAMPLES, dtype=np.int64) % CLASSES
    half = EXAMPLES // 2
    return Dataset(x[:half], y[:half], x[half:], y[half:], tuple(str(c) for c in range(CLASSES)))
