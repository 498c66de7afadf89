"""Which weights to keep: those whose importance per second of training time is worth it, by PruneFL's Algorithm 2.

Importance is the mean squared gradient over all coordinates, pruned ones too, so that weights can come back; they come
back at 0. The result maximises (importance kept) / (time of a round) over all choices among the prunable coordinates.
Source: PruneFL, section IV, Algorithm 2 and Theorem 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coordinator.pruning.masks import Masks, smallest_kept
from coordinator.pruning.time_model import TimeModel

PRUNABLE_SHARE = 0.3
HALVED_EVERY = 10_000


def prunable_share(round_index: int) -> float:
    """Share of the kept weights that a reconfiguration may remove: 0.3 at first, halved every 10,000 rounds."""
    return float(PRUNABLE_SHARE * 0.5 ** (round_index / HALVED_EVERY))


def largest_density(round_index: int, *, rounds: int, first: float, last: float) -> float:
    """Density allowed in a round: from ``first`` to ``last`` on a straight line. Source: PruneFL, section IV-D."""
    done = min(round_index / rounds, 1.0)
    return first + (last - first) * done


def reconfigure(
    weights: Mapping[str, np.ndarray],
    masks: Masks,
    importance: Mapping[str, np.ndarray],
    times: TimeModel,
    *,
    share: float,
    fixed_importance: float = 0.0,
    cap: int | None = None,
) -> dict[str, np.ndarray]:
    """New masks, of the same names.

    Args:
        importance: by weight name, of every coordinate, not negative.
        share: of each layer's kept weights, the smallest of which may go.
        fixed_importance: of what is never pruned (biases, norms); it takes no time.
        cap: most weights kept; where what may not be pruned exceeds it, that shrinks by magnitude.
    """
    kept = {name: _not_prunable(weights[name], mask, share) for name, mask in masks.items()}
    if cap is not None:
        kept = _within(kept, weights, cap)
    gain = fixed_importance + sum(float(importance[n][m].sum(dtype=np.float64)) for n, m in kept.items())
    seconds = times.round_s(kept)
    layers, positions, values, costs = _candidates(kept, importance, times)
    order = np.argsort(-_ratio(values, costs), kind="stable")
    values, costs = values[order], costs[order]
    # What has been gathered before each candidate decides whether it is still worth its time.
    before_gain = gain + np.concatenate([[0.0], np.cumsum(values)[:-1]])
    before_seconds = seconds + np.concatenate([[0.0], np.cumsum(costs)[:-1]])
    is_worth = values * before_seconds >= before_gain * costs
    count = len(order) if is_worth.all() else int(np.argmin(is_worth))
    if cap is not None:
        count = min(count, max(0, cap - sum(int(m.sum()) for m in kept.values())))
    names = list(masks)
    for index in range(len(names)):
        taken = order[:count][layers[order[:count]] == index]
        kept[names[index]].reshape(-1)[positions[taken]] = True
    return kept


def _not_prunable(weight: np.ndarray, mask: np.ndarray, share: float) -> np.ndarray:
    """The mask without the ``share`` of its entries that are smallest."""
    kept: np.ndarray = mask.copy()
    kept.reshape(-1)[smallest_kept(weight, mask, int(share * int(mask.sum())))] = False
    return kept


def _within(kept: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], cap: int) -> dict[str, np.ndarray]:
    """``kept`` itself, or its ``cap`` entries of largest magnitude over all layers."""
    excess = sum(int(m.sum()) for m in kept.values()) - cap
    if excess <= 0:
        return dict(kept)
    names = list(kept)
    places = {name: np.flatnonzero(kept[name]) for name in names}
    magnitudes = np.concatenate([np.abs(weights[n].reshape(-1)[places[n]]) for n in names])
    owner = np.concatenate([np.full(len(places[n]), i) for i, n in enumerate(names)])
    position = np.concatenate([places[n] for n in names])
    gone = np.argsort(magnitudes, kind="stable")[:excess]
    smaller = {name: mask.copy() for name, mask in kept.items()}
    for index, name in enumerate(names):
        smaller[name].reshape(-1)[position[gone[owner[gone] == index]]] = False
    return smaller


def _candidates(
    kept: Mapping[str, np.ndarray], importance: Mapping[str, np.ndarray], times: TimeModel
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Layer number, flat index, importance and seconds of every coordinate that is not kept already."""
    layers, positions, values, costs = [], [], [], []
    for index, (name, mask) in enumerate(kept.items()):
        free = np.flatnonzero(~mask)
        layers.append(np.full(len(free), index))
        positions.append(free)
        values.append(importance[name].reshape(-1)[free].astype(np.float64))
        costs.append(np.full(len(free), times.weight_s[name]))
    return np.concatenate(layers), np.concatenate(positions), np.concatenate(values), np.concatenate(costs)


def _ratio(values: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Importance per second; what costs nothing comes first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: np.ndarray = np.where(costs > 0, values / costs, np.inf)
    return ratio
