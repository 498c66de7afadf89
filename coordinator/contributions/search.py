"""The scheme of the largest contribution under a budget: a knapsack for each layer that biases may begin at.

MCUNetV3 adds up contributions measured layer by layer and searches schemes by evolution. The sum makes it a knapsack
with one choice per layer once it is fixed how far down the backward pass goes, and dynamic programming over memory and
multiply-accumulates gives the best scheme in a second, to the cells in which it counts; what is taken is within the
budget to the byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.contributions.operations import Operation, Work, step_work
from coordinator.contributions.record import Contributions
from coordinator.contributions.scheme import BLOCKS, Layer, Scheme, head_of, trained_names

CELLS = 400, 200
"""In which memory and multiply-accumulates are counted."""
TIGHTER = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.85, 0.8, 0.7, 0.5, 0.0)
"""Of the room, tried in turn until what cells take for within the budget is so exactly."""
WEIGHT_BYTES = 8
"""Of a trained weight: its gradient and one value of the optimizer."""


@dataclass(frozen=True)
class Cost:
    """What a step needs beside the model itself.

    Attributes:
        memory: bytes, of what the backward pass reads, of gradients and optimizer state.
        macs: multiply-accumulates for one example, forward and backward.
    """

    memory: int
    macs: int

    def fits(self, limit: Cost) -> bool:
        """Whether neither is above."""
        return self.memory <= limit.memory and self.macs <= limit.macs


def full_cost(operations: Sequence[Operation], sizes: Mapping[str, int]) -> Cost:
    """Of the step that trains every parameter; ``sizes`` are their elements."""
    work = step_work(operations, sizes)
    return Cost(work.kept_bytes + WEIGHT_BYTES * sum(sizes.values()), work.macs)


def scheme_cost(
    operations: Sequence[Operation],
    layers: Collection[Layer],
    scheme: Scheme,
    sizes: Mapping[str, int],
    *,
    keeps_features: bool = False,
) -> Cost:
    """Of the step that trains ``scheme``; with ``keeps_features`` of one that begins at what frozen layers gave."""
    shares = {
        layer.weight: 1.0 if rows is None else len(rows) / layer.channels
        for layer in layers
        if (rows := scheme.rows.get(layer.path, ())) != ()
    }
    trained = trained_names(layers, scheme)
    work = step_work(operations, trained, shares, keeps_features=keeps_features)
    held = sum(round(sizes[name] * shares.get(name, 1.0)) for name in trained)
    return Cost(work.kept_bytes + WEIGHT_BYTES * held, work.macs)


def best_scheme(
    operations: Sequence[Operation],
    layers: Collection[Layer],
    sizes: Mapping[str, int],
    contributions: Contributions,
    limit: Cost,
    *,
    trains_norms: bool = False,
    keeps_features: bool = False,
) -> Scheme | None:
    """The scheme within ``limit`` that contributes most; None where the head alone is above it.

    Args:
        trains_norms: whether norms from the first trained layer on are trained.
        keeps_features: whether devices keep what frozen layers give, so that ``limit`` is of a step without these.
    """

    def cost(scheme: Scheme) -> Cost:
        return scheme_cost(operations, layers, scheme, sizes, keeps_features=keeps_features)

    head = head_of(layers)
    best: tuple[float, Scheme] | None = None
    weighted = [layer for layer in layers if layer.weight]
    for depth, first in reversed([*enumerate(weighted)]):  # of equal schemes the one whose backward pass is shorter
        base = Scheme(first.path, {head.path: None}, trains_norms)
        free = cost(base)
        if not free.fits(limit):
            continue
        trained = trained_names(layers, base)
        work = step_work(operations, trained, keeps_features=keeps_features)
        choices = []
        for layer in weighted[depth:]:
            if layer.path == head.path:
                continue
            wider = step_work(operations, trained | {layer.weight}, keeps_features=keeps_features)
            more = wider.forward_macs - work.forward_macs
            choices.append(_options(operations, layer, work, contributions, more))
        for share in TIGHTER:
            room = Cost(round((limit.memory - free.memory) * share), round((limit.macs - free.macs) * share))
            gain, chosen = _knapsack(choices, room)
            scheme = Scheme(first.path, {**chosen, head.path: None}, trains_norms)
            if cost(scheme).fits(limit):
                break
        gain += contributions.of(first.path).biases
        if best is None or gain > best[0]:
            best = gain, scheme
    return best[1] if best else None


@dataclass(frozen=True)
class _Option:
    path: str
    rows: tuple[int, ...] | None
    gain: float
    cost: Cost


def _options(
    operations: Sequence[Operation], layer: Layer, base: Work, contributions: Contributions, forward_macs: int
) -> list[_Option]:
    """What of a layer's weight can be trained, with what it adds to the step whose biases alone are.

    Args:
        forward_macs: of the forward pass, which a step on kept features then runs too.
    """
    alone = step_work(operations, {layer.weight})
    kept = sum(
        size for value, size in alone.kept.items() if value not in base.kept and value in _inputs(operations, layer)
    )
    found = contributions.of(layer.path)
    blocks = np.argsort([-gain for gain in found.blocks], kind="stable")
    options = []
    for share in layer.shares:
        memory = kept + WEIGHT_BYTES * round(layer.size * share)
        cost = Cost(memory, forward_macs + round(alone.weight_macs.get(layer.weight, 0) * share))
        if share == 1.0:
            options.append(_Option(layer.path, None, sum(found.blocks), cost))
            continue
        taken = sorted(int(block) for block in blocks[: round(share * BLOCKS)])
        width = layer.channels // BLOCKS
        rows = tuple(block * width + i for block in taken for i in range(width))
        options.append(_Option(layer.path, rows, sum(found.blocks[block] for block in taken), cost))
    return [option for option in options if option.gain > 0]


def _inputs(operations: Sequence[Operation], layer: Layer) -> set[int]:
    return {value for op in operations if layer.weight in op.parameters.values() for value in op.values}


def _knapsack(choices: list[list[_Option]], room: Cost) -> tuple[float, dict[str, tuple[int, ...] | None]]:
    """At most one option of every list: the largest sum of gains within about ``room``, and what it takes."""
    costs = [[(option.cost.memory, option.cost.macs) for option in options] for options in choices]
    most = [sum(max((cost[i] for cost in layer), default=0) for layer in costs) for i in (0, 1)]
    # Of what all layers together may take no account is kept.
    rooms = (room.memory, room.macs)
    cells = [count if most[i] > rooms[i] else 0 for i, count in enumerate(CELLS)]
    scale = [max(1, rooms[i]) / cells[i] if cells[i] else float("inf") for i in (0, 1)]
    gains = np.zeros((cells[0] + 1, cells[1] + 1))
    taken: list[np.ndarray] = []
    for options in choices:
        choice, new = np.zeros(gains.shape, np.int8), gains.copy()
        for number, option in enumerate(options, 1):
            m, c = _cells(option.cost, scale)
            if m > cells[0] or c > cells[1]:
                continue
            moved = np.full(gains.shape, -np.inf)
            moved[m:, c:] = gains[: gains.shape[0] - m, : gains.shape[1] - c] + option.gain
            better = moved > new
            new[better], choice[better] = moved[better], number
        gains = new
        taken.append(choice)
    chosen: dict[str, tuple[int, ...] | None] = {}
    m, c = cells
    for options, choice in zip(reversed(choices), reversed(taken), strict=True):
        if number := int(choice[m, c]):
            option = options[number - 1]
            chosen[option.path] = option.rows
            used = _cells(option.cost, scale)
            m, c = m - used[0], c - used[1]
    return float(gains[cells[0], cells[1]]), chosen


def _cells(cost: Cost, scale: list[float]) -> tuple[int, int]:
    return round(cost.memory / scale[0]), round(cost.macs / scale[1])
