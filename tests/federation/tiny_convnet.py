"""A user's own model and data for the tests: convolutions with batch norm on 8x8 digits, as package.module:function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from coordinator.data.datasets import Dataset
from coordinator.data.digits import load_digits_dataset


def digit_images(path: Path | None, seed: int, holdout: float = 1 / 3) -> Dataset:
    """The digits as images [N, 1, 8, 8]."""
    digits = load_digits_dataset(path, seed, holdout)
    return replace(digits, x_train=digits.x_train.reshape(-1, 1, 8, 8), x_test=digits.x_test.reshape(-1, 1, 8, 8))


def build(*, classes: int, width: int = 4, norm: bool = True) -> nn.Module:
    """[B, 1, 8, 8] -> [B, classes]; without ``norm`` the convolutions have a bias in its place."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=not norm),
        nn.BatchNorm2d(width) if norm else nn.Identity(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 8, 3, padding=1, bias=not norm),
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, classes),
    )


def build_one_norm(*, classes: int) -> nn.Module:
    """As :func:`build`, with the first norm alone."""
    module = build(classes=classes)
    assert isinstance(module, nn.Sequential)
    module[5] = nn.Identity()
    return module
