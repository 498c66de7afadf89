"""Modules of a user, good and bad, for ``--model tests.cli.own_models:NAME``; all take eight features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def small(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(*input_shape, 6), nn.ReLU(), nn.Linear(6, classes))


def wide(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Three layers, of which the middle one is worth factorizing."""
    widths = [nn.Linear(*input_shape, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes)]
    return nn.Sequential(*widths)


def talkative(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Prints where results go."""
    print("hello from the model")
    return small(input_shape, classes)


def with_dropout() -> nn.Module:
    """Draws a mask in every step."""
    return nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 3))


class Sorted(nn.Module):
    """A layer whose training step cannot be exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sort(1).values


def with_sorting() -> nn.Module:
    """A layer in the middle that no runtime trains."""
    return nn.Sequential(nn.Linear(8, 6), Sorted(), nn.Linear(6, 3))


def cannot_be_built() -> nn.Module:
    """Raises what only its author understands."""
    raise RuntimeError("weights are on another disk")


class WrongWidth(nn.Module):
    """Runs into its own mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 8] to nothing: the head takes eight features and gets four."""
        out: Tensor = self.head(torch.relu(x[:, :4]))
        return out
