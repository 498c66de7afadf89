"""Accuracies of the papers' comparisons that the map of ``apportion advise`` takes over, as their pages have them.

Each was run by :mod:`benchmarks.orderings` or :mod:`benchmarks.claims` and scored only now and then, so that "the first
round at the target" is a coarse one there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Earlier:
    """One comparison.

    Attributes:
        file: run file under ``examples``.
        courses: label -> method, options, rounds that were scored, and accuracy in percent by seed.
    """

    name: str
    file: str
    source: str
    courses: Mapping[str, tuple[str, Mapping[str, Any], tuple[int, ...], Mapping[int, tuple[float, ...]]]]


_ORDERINGS = "docs/measurements/2026-11-20-orderings.md"
_CLAIMS = "docs/measurements/2026-11-26-claims.md"
_CODE = {"levels": [0.2], "kappa": 4.0, "row-ratio": 0.4, "input-cut": False}
_ALL_ROWS = {"levels": [0.2], "kappa": 4.0, "rows": "all"}
_FIFTH = {"levels": [0.2]}
_QUARTER = {"levels": [0.25]}


def _ends(*percent: float) -> dict[int, tuple[float, ...]]:
    return {seed: (value,) for seed, value in enumerate(percent, 1)}


EARLIER = (
    Earlier(
        "CIFAR-10 at 16x16, ResNet-20, alike devices",
        "orderings/memory_cifar10.toml",
        _ORDERINGS,
        {
            "slt 0.25": ("slt", _QUARTER, (40,), _ends(43.0, 42.9, 41.9)),
            "small_model 0.25": ("small_model", _QUARTER, (40,), _ends(45.7, 47.3, 46.5)),
            "fedrolex 0.25": ("fedrolex", {**_QUARTER, "rounding": "floor"}, (40,), _ends(21.3, 23.0, 20.8)),
            "federated_dropout 0.25": ("federated_dropout", _QUARTER, (40,), _ends(18.8, 19.4, 19.1)),
        },
    ),
    Earlier(
        "CIFAR-10 at 16x16, ResNet-8, alike devices",
        "orderings/low_rank_cifar10.toml",
        _ORDERINGS,
        {
            "prism 0.2": ("prism", {**_FIFTH, "kappa": 4.0}, (40,), _ends(25.4, 21.4, 20.6)),
            "prism 0.2, all rows": ("prism", _ALL_ROWS, (40,), _ends(41.2, 41.5, 40.2)),
            "orthdrop 0.2": ("orthdrop", _FIFTH, (40,), _ends(41.5, 43.1, 40.9)),
            "origdrop 0.2": ("origdrop", _FIFTH, (40,), _ends(44.5, 42.9, 42.5)),
        },
    ),
    Earlier(
        "CIFAR-10 at 16x16, ResNet-8, few classes each",
        "claims/low_rank_dirichlet_cifar10.toml",
        _CLAIMS,
        {
            "orthdrop 0.2": ("orthdrop", _FIFTH, (65, 130), {1: (34.7, 47.8), 2: (25.6, 48.1), 3: (26.4, 46.0)}),
            "prism 0.2, all rows": ("prism", _ALL_ROWS, (65, 130), {1: (35.5, 49.1), 2: (25.4, 48.0), 3: (27.8, 43.2)}),
            "prism 0.2": ("prism", _CODE, (65, 130), {1: (29.5, 31.4), 2: (24.1, 39.3)}),
            "origdrop 0.2": ("origdrop", _FIFTH, (65,), _ends(29.9, 25.3, 24.1)),
        },
    ),
    Earlier(
        "MNIST by writer, PriSM's network",
        "claims/femnist_like.toml",
        _CLAIMS,
        {
            "fedavg": ("fedavg", {}, (25, 50), {1: (98.14, 98.54)}),
            "orthdrop 0.2": ("orthdrop", _FIFTH, (25, 50), {1: (97.32, 98.11)}),
            "prism 0.2": ("prism", {**_CODE, "kappa": 2.5}, (25, 50), {1: (96.87, 97.78)}),
        },
    ),
)
"""Without FedHM's comparison with HeteroFL, whose devices hold four levels, and PruneFL's, whose clock is another."""
