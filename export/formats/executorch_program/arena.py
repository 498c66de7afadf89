"""Where each value of a program lies in its arena.

ExecuTorch's own planner keeps values in objects that it lays one behind the other; two small ones that are free never
hold a large one. Here a value goes wherever there is room while it lives: the arena is then hardly larger than what
lives at once (measured on 15 steps, docs/measurements/2026-11-29-float16-activations.md#the-arena). The smaller of both
plans is taken.
Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, section 5 (greedy by
size), in several orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_TURNS = 12
"""Further orders tried: each begins with those values that the last one left on top."""
_ENOUGH = 1.005
"""Of the bytes that live at once: a plan this close is not worth another order."""


@dataclass(frozen=True)
class Lifetime:
    """A value's bytes, and the first and the last operation it is there for."""

    size: int
    first: int
    last: int


_KEYS: tuple[Callable[[Lifetime], Any], ...] = (
    lambda v: (-v.size, v.first),
    lambda v: (-v.size, v.first - v.last, v.first),
    lambda v: (-v.size * (1 + v.last - v.first), v.first),
    lambda v: (v.first - v.last, -v.size),
    lambda v: (v.first, -v.size),
)


def offsets(values: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each value, and the bytes that all of them take; values that live together never overlap."""
    enough = most_alive(values) * _ENOUGH
    best: tuple[list[int], int] = ([], 0)
    for key in _KEYS:
        found = _placed(values, sorted(range(len(values)), key=lambda i: key(values[i])))
        if not best[0] or found[1] < best[1]:
            best = found
        if best[1] <= enough:
            return best
    places, most = best
    order = sorted(range(len(values)), key=lambda i: _KEYS[0](values[i]))
    for _ in range(_TURNS):
        top = {i for i in order if places[i] + values[i].size == most}
        order = [i for i in order if i in top] + [i for i in order if i not in top]
        places, most = _placed(values, order)
        if most < best[1]:
            best = places, most
        if most <= enough:
            break
    return best


def _placed(values: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Each value, in this order, at the lowest offset where nothing lies that lives with it."""
    first, last, start, end = (np.zeros(len(values), np.int64) for _ in range(4))
    places, most = [0] * len(values), 0
    for count, i in enumerate(order):
        value = values[i]
        beside = np.flatnonzero((first[:count] <= value.last) & (last[:count] >= value.first))
        offset = 0
        for k in beside[np.argsort(start[beside], kind="stable")]:
            if start[k] - offset >= value.size:
                break
            offset = max(offset, int(end[k]))
        places[i] = offset
        first[count], last[count], start[count], end[count] = value.first, value.last, offset, offset + value.size
        most = max(most, offset + value.size)
    return places, most


def most_alive(values: Sequence[Lifetime]) -> int:
    """Bytes of the fullest moment, below which no plan gets."""
    changes: dict[int, int] = {}
    for value in values:
        changes[value.first] = changes.get(value.first, 0) + value.size
        changes[value.last + 1] = changes.get(value.last + 1, 0) - value.size
    alive = most = 0
    for moment in sorted(changes):
        alive += changes[moment]
        most = max(most, alive)
    return most


def in_one_arena(alignment: int, specs: Sequence[Any], graph: Any, signature: Any, padding: int = 0) -> Any:
    """The plan as a planning algorithm of ExecuTorch gives it; its own where values lie in others or elsewhere."""
    from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult, greedy

    specs = list(specs)
    taken = sum(getattr(graph, "input_mem_buffer_sizes", None) or [])
    if not specs or taken or any(s.storage_base is not None or s.mem_id not in (None, 1) for s in specs):
        return greedy(alignment, specs, graph, signature, padding)
    for spec in specs:
        spec.realign(alignment)
    places, size = offsets([Lifetime(s.allocated_memory, s.lifetime[0], s.lifetime[1]) for s in specs])
    plan = {spec: SpecAllocResult(1, 0, place) for spec, place in zip(specs, places, strict=True)}
    return MemoryAlgoResult(plan, [0, size + padding])
