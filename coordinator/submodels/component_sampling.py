"""Which components of a decomposed layer a device gets: drawn one after the other, each removed once it is drawn."""

from __future__ import annotations

import numpy as np

from edge.contracts.streams import uniform

SAMPLINGS = ("power", "uniform", "softmax", "top")
"""``power``: with probabilities sigma^kappa / sum; ``softmax`` of sigma; ``uniform``; ``top``: the largest, always."""


def drawn_components(sigma: np.ndarray, rank: int, sampling: str, *, kappa: float, stream: int) -> tuple[int, ...]:
    """``rank`` different components, ascending, from the numbers of ``stream``.

    Args:
        sigma: singular values, largest first.

    Source: PriSM, section 4.1; uniform and softmax are its ablations (Table 5), top is OrthDrop.
    """
    if sampling == "top" or rank == len(sigma):
        return tuple(range(rank))
    values = sigma.astype(np.float64)
    if sampling == "uniform":
        log_weights = np.zeros(len(values))
    elif sampling == "softmax":
        log_weights = values
    else:
        with np.errstate(divide="ignore"):
            log_weights = kappa * np.log(values)
    draws = uniform(stream, len(values))
    # Keys log(weight) - log(-log(u)) rank as drawing without replacement does (the Gumbel form of its order).
    keys = log_weights - np.log(-np.log(np.clip(draws, 1e-300, 1 - 1e-16)))
    return tuple(sorted(np.argsort(-keys, kind="stable")[:rank].tolist()))
