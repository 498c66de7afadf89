"""A federation of a second: scikit-learn's digits, a perceptron that is handed over, four devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import apportion


def digits(count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [count, 64] in 0..1 and labels."""
    found = load_digits()
    return (found.data[:count] / 16).astype(np.float32), found.target[:count]


def perceptron(seed: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def small(**changes: Any) -> apportion.Federation:
    settings: dict[str, Any] = {
        "model": perceptron(),
        "data": digits(),
        "devices": 4,
        "rounds": 2,
        "training": apportion.Train(lr=0.3, batch=16, epochs=2),
    }
    return apportion.Federation(**{**settings, **changes})
