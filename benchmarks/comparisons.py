"""What a comparison of methods is: its entries, what is claimed of them, and on which seeds they are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SEEDS = (1, 2, 3)
TARGETS = (0.8, 0.9)
"""Accuracies to which PruneFL and FedAvg are timed; 0.8 is the higher one of the paper's two, the first that counts."""


@dataclass(frozen=True)
class Entry:
    """One method of a comparison.

    Attributes:
        file: its run file's name.
        model: label of the evaluated model that stands for the method.
        method, options: instead of those of the file, when given.
        rounds: instead of those of the file, where a method's rounds take less of the budget.
    """

    label: str
    file: str
    model: str = "server"
    method: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 0


@dataclass(frozen=True)
class Comparison:
    """Methods under one budget.

    Attributes:
        claims: (better, worse) by entry label, as the papers order them.
        is_timed: whether seconds to :data:`TARGETS` are compared, and not final accuracies.
        share: of the second method's seconds that the first may take, where they are compared.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    claims: tuple[tuple[str, str], ...]
    is_timed: bool = False
    share: float = 0.5
