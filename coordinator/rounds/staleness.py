"""An update trained from an older model, as the one it would be beside the current model: what it moved, moved there.

An update stands for what training changed, Delta = trained - origin. Beside the current model w of the same cut it is
w + eta * s(t) * Delta, where s(t) = (1 + t)^-alpha for a model t versions old and eta is the server's learning rate.
A method that takes the mean weighted by n of such updates gives

    w + eta * sum_i n_i s(t_i) Delta_i / sum_i n_i,

FedBuff's step with each device weighted by its examples. The divisor holds no s: a buffer of old updates takes a
shorter step, which is what staleness is for; dividing by sum n_i s_i would undo it where all are equally old.
Where devices train factors, the products of the factors take their place in all of this: Delta is what the dense layer
moved by that they stand for, and w the whole layer. The factors of a model are those of its own decomposition, and what
moves in one basis has no meaning in another. A round of such a method loses what the ranks of its devices cut away; a
buffer adds to the whole layer, and keeps it.
Source: Nguyen et al., "Federated learning with buffered asynchronous aggregation" (AISTATS 2022), Algorithm 1 and
section 5 for s(t) = (1 + t)^-1/2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.ledger.records import RecordedUpdate
from coordinator.methods.method import Method, MovesProducts
from coordinator.rounds.federation import Federation
from coordinator.rounds.origin_weights import origin_weights
from coordinator.submodels.values import State, Update
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected

if TYPE_CHECKING:
    from coordinator.submodels.values import Tensors


def require_rebasing(method: Method) -> None:
    """Check that a run of ``method`` may be buffered.

    Raises:
        ConfigError: it may not; the message says why.
    """
    if method.synchronous_only:
        raise ConfigError(
            [
                f'$.aggregation.mode: "buffered" adds what devices learnt from older models, and method {method.name} '
                f"cannot: {method.synchronous_only}; use synchronous"
            ]
        )


def staleness_weight(staleness: int, exponent: float) -> float:
    """(1 + t)^-alpha of an update trained from a model ``staleness`` versions old; 1 of one from the current model."""
    return float((1 + staleness) ** -exponent)


def rebased(trained: Tensors, origin: Tensors, current: Tensors, *, weight: float, where: str) -> dict[str, np.ndarray]:
    """``current`` + ``weight`` * (``trained`` - ``origin``), for every tensor of ``trained``, in its dtype.

    A tensor that has not moved since is, at weight 1, the trained one itself, to the bit.

    Args:
        origin: what the device started from; the names and shapes of ``trained``, or more.
        current: the same cut of the current model.

    Raises:
        UpdateRejected: a tensor that the device was not sent, or that the cut of today does not have so.
    """
    moved: dict[str, np.ndarray] = {}
    for name, value in trained.items():
        for what, tensors in (("the weights it was sent", origin), ("today's cut", current)):
            shape = tuple(tensors[name].shape) if name in tensors else None
            if shape != tuple(value.shape):
                raise UpdateRejected(
                    f"{where}: '{name}' has shape {tuple(value.shape)}, in {what} {shape}; re-plan the device"
                )
        if weight == 1.0 and np.array_equal(origin[name], current[name]):
            moved[name] = value
            continue
        step = np.subtract(value, origin[name], dtype=np.float64)
        step *= weight
        step += current[name]
        moved[name] = (np.rint(step) if value.dtype.kind in "iu" else step).astype(value.dtype)
    return moved


def beside(
    method: Method,
    state: State,
    update: Update,
    origin: Tensors,
    current: Tensors,
    *,
    weight: float,
    where: str,
) -> dict[str, np.ndarray]:
    """The tensors of ``update``, as ``method`` takes them, moved beside ``state``; see :func:`rebased`.

    Args:
        origin: what the device started from.
        current: today's cut for the device.
    """
    if not isinstance(method, MovesProducts):
        return rebased(update.tensors, origin, current, weight=weight, where=where)
    begun = {name: origin[name] for name in update.tensors if name in origin}
    try:
        trained, began = method.products(update.tensors, update.cut), method.products(begun, update.cut)
    except PlanError as error:
        raise UpdateRejected(f"{where}: {error}; re-plan the device") from error
    return rebased(trained, began, method.whole(state), weight=weight, where=where)


def rebased_updates(
    federation: Federation, state: State, version: int, recorded: Sequence[RecordedUpdate], updates: Iterator[Update]
) -> Iterator[Update]:
    """``updates``, those behind ``recorded``, as beside ``state``; see :func:`staleness_weight`."""
    aggregation, seed = federation.config.aggregation, federation.config.federation.seed
    for entry, update in zip(recorded, updates, strict=True):
        assignment = entry.assignment
        where = f"device {assignment.device}, round {assignment.round}"
        # Every draw of a cut is keyed by (seed, round, device): the old round's cut, of the state of today.
        today = federation.method.cut(
            state, update.level, round_index=assignment.round, device=assignment.device, seed=seed
        )
        weight = staleness_weight(version - assignment.round, aggregation.staleness_exponent)
        is_of_today = version == assignment.round  # its weights were this very cut
        tensors = beside(
            federation.method,
            state,
            update,
            today.tensors if is_of_today else origin_weights(federation, assignment, where=where),
            today.tensors,
            weight=aggregation.server_lr * weight,
            where=where,
        )
        yield replace(update, tensors=tensors)


def staleness_counts(version: int, recorded: Sequence[RecordedUpdate]) -> Mapping[str, int]:
    """How many of ``recorded`` were trained from a model so many versions old, by that number as text, in order."""
    ages = [version - entry.assignment.round for entry in recorded]
    return {str(age): ages.count(age) for age in sorted(set(ages))}
