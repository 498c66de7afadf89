"""Masks over prunable weights: which tensors have one, how dense they are, magnitude pruning, and bytes on the wire.

A mask is a boolean array of its weight's shape; True entries are kept and trained, all others are 0 and stay 0.
Source: PruneFL, section III; the wire formats of its section V.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
from torch import nn

from coordinator.submodels.layout import SHORTCUTS
from edge.contracts.errors import PlanError

Masks = Mapping[str, np.ndarray]
MASK = "#mask"
"""``<weight>#mask`` is the mask of tensor ``<weight>``, in an artifact and in what a device gets."""


def prunable_weights(module: nn.Module) -> tuple[str, ...]:
    """Weights of convolutions and linear layers in module order; not biases, norms or shortcut convolutions.

    Raises:
        PlanError: the module has none.
    """
    names = []
    for path, part in module.named_modules():
        is_shortcut = any(fnmatchcase(path, pattern) for pattern in SHORTCUTS)
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd) and not is_shortcut:
            names.append(f"{path}.weight" if path else "weight")
    if not names:
        raise PlanError(
            f"{type(module).__name__} has no convolution or linear layer to prune; use a method that keeps it whole"
        )
    return tuple(names)


def density(masks: Masks) -> float:
    """Kept share of all prunable weights."""
    return sum(int(m.sum()) for m in masks.values()) / sum(m.size for m in masks.values())


def masked(tensors: Mapping[str, np.ndarray], masks: Masks) -> dict[str, np.ndarray]:
    """``tensors`` with every masked entry 0; the others are the very arrays that were given."""
    return {n: np.where(masks[n], v, v.dtype.type(0)) if n in masks else v for n, v in tensors.items()}


def smallest_kept(weight: np.ndarray, mask: np.ndarray, count: int) -> np.ndarray:
    """Flat indices of the ``count`` kept entries of smallest magnitude; the lower index first among equals."""
    kept = np.flatnonzero(mask)
    order = np.argsort(np.abs(weight.reshape(-1)[kept]), kind="stable")
    return kept[order[:count]]


def largest(weight: np.ndarray, share: float) -> np.ndarray:
    """Mask of the ``share`` of the entries that is largest in magnitude, at least one; the earlier among equals."""
    magnitude = np.abs(weight).reshape(-1)
    gone = magnitude.size - max(1, round(share * magnitude.size))
    least = np.partition(magnitude, gone)[gone]
    kept = magnitude > least
    kept[np.flatnonzero(magnitude == least)[: magnitude.size - gone - int(kept.sum())]] = True
    return np.asarray(kept.reshape(weight.shape))


def prune_by_magnitude(tensors: Mapping[str, np.ndarray], masks: Masks, keep: float) -> dict[str, np.ndarray]:
    """Every layer's mask with only the ``keep`` share of its kept entries, those of largest magnitude."""
    pruned = {}
    for name, mask in masks.items():
        kept = int(mask.sum())
        gone = smallest_kept(tensors[name], mask, kept - max(1, round(keep * kept)))
        pruned[name] = mask.copy()
        pruned[name].reshape(-1)[gone] = False
    return pruned


def top_scores(scores: Mapping[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """Masks of the ``share`` largest scores over all layers; the earlier entry first among equals."""
    names = list(scores)
    flat = np.concatenate([scores[n].reshape(-1) for n in names])
    keep = np.zeros(flat.size, bool)
    keep[np.argsort(-flat, kind="stable")[: max(1, round(share * flat.size))]] = True
    masks, at = {}, 0
    for name in names:
        size = scores[name].size
        masks[name] = keep[at : at + size].reshape(scores[name].shape)
        at += size
    return masks


def wire_ratio(kept_share: float, *, pattern_changes: bool) -> float:
    """Bytes of a pruned tensor over those of the dense one, at 4 bytes per value.

    With a pattern both sides know it is the values alone; otherwise the smaller of value with row and column (16 bits
    each) and values with a bit per entry. Source: PruneFL, section V; the two meet at 1/32.
    """
    return min(2 * kept_share, 1 / 32 + kept_share) if pattern_changes else kept_share


def mean_wire_ratio(kept_share: float, *, interval: int) -> float:
    """Bytes of an average round, both directions, over those of a dense model once, at a density that stays.

    In one round of ``interval`` a device sends its kept values and a score for every other coordinate, a dense model's
    bytes, and gets kept values; in all others kept values go both ways. Here scores are sent for kept coordinates too,
    which makes that round 1 + 2 d. Source: PruneFL, section V; at 50 rounds it is 0.02 + 1.98 d (1.96 in print).
    """
    return ((1 + kept_share) + 2 * (interval - 1) * kept_share) / interval
