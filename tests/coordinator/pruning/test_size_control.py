"""The online controller against a plain computation of the same rules, written out step by step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coordinator.pruning.size_control import WAITS, WINDOW, SizeControl
from edge.contracts.streams import uniform

TOTAL = 10_000


class Plain:
    """The rules as one list of statements, in floats and mutable numbers."""

    def __init__(self, total: int) -> None:
        self.least, self.total = max(2, round(0.002 * total)), total
        self.k, self.lesser = total, math.ceil(0.9 * total)
        self.low, self.high = self.least, total
        self.t, self.t0, self.previous_epoch, self.undefined = 0, 0, 0, 0
        self.visited: list[int] = []

    def step(self, cost: float, lesser_cost: float | None, draws: tuple[float, float]) -> None:
        self.t += 1
        eta = (self.high - self.low) / math.sqrt(2 * (self.t - self.t0))
        wanted: float | None
        if lesser_cost is not None:
            self.undefined = 0
            slope = (cost - lesser_cost) / (self.k - self.lesser)
            wanted = self.k - eta * (1 if slope > 0 else -1 if slope < 0 else 0)
        elif self.undefined < 10:
            self.undefined += 1
            wanted = None
        else:
            self.undefined = 0
            wanted = self.k + eta
        if wanted is not None:
            self.k = int(wanted // 1) + (1 if draws[0] < wanted % 1 else 0)
        self.k = min(max(self.k, self.low), self.high)
        less = self.k - eta / 2
        self.lesser = int(less // 1) + (1 if draws[1] < less % 1 else 0)
        self.lesser = min(max(self.lesser, math.ceil(0.1 * self.low)), self.k - 1)
        if wanted is None:
            return
        self.visited.append(self.k)
        if len(self.visited) == 20:
            low = max(round(min(self.visited) / 1.5), self.least)
            high = min(round(max(self.visited) * 1.5), self.total)
            epoch = self.t - self.t0
            if 0 < high - low <= (math.sqrt(2) - 1) * (self.high - self.low) and epoch >= self.previous_epoch:
                self.low, self.high, self.t0, self.previous_epoch = low, high, self.t, epoch
            self.visited = []


def costs(size: int, best: int) -> float:
    """A valley: what lies further from ``best`` costs more."""
    return 1.0 + abs(size - best) / TOTAL


@pytest.mark.parametrize("best", [300, 2_000, 9_000])
def test_two_hundred_rounds_are_those_of_the_plain_rules(best: int) -> None:
    control, plain = SizeControl.first(TOTAL), Plain(TOTAL)
    generator = np.random.default_rng(best)
    closed_in = 0
    for index in range(200):
        draws = tuple(uniform(index, 2).tolist())
        comparable = generator.random() < 0.85 and not 40 <= index < 55  # a stretch without any comparison
        cost, lesser = costs(control.size, best), costs(control.lesser, best)
        before = control
        control = control.after(cost, lesser if comparable else None, draws)
        plain.step(cost, lesser if comparable else None, draws)
        assert (control.size, control.lesser) == (plain.k, plain.lesser), index
        assert (control.low, control.high) == (plain.low, plain.high), index
        assert (control.began, control.epoch, control.waited) == (plain.t0, plain.previous_epoch, plain.undefined)
        assert control.low <= control.size <= control.high or before.low <= control.size <= before.high
        assert 1 <= control.lesser < control.size
        closed_in += control.began != before.began
    assert closed_in >= 1
    assert abs(control.size - best) < abs(TOTAL - best)


def test_first_step_by_hand() -> None:
    control = SizeControl.first(TOTAL)
    assert (control.size, control.lesser, control.low, control.high) == (10_000, 9_000, 20, 10_000)
    # eta = 9980 / sqrt(2) = 7056.926...; fewer weights cost less, so k falls: 2943.07..., rounded up by a draw of 0.05
    step = control.after(2.0, 1.0, (0.05, 0.9))
    assert step.size == 2944
    # k' = 2944 - 3528.46 is negative: a tenth of the lower end
    assert step.lesser == 2
    assert control.after(2.0, 1.0, (0.08, 0.9)).size == 2943
    # eta = 9980 / 2; more weights cost less, so k grows again: 2944 + 4990
    assert step.after(1.0, 2.0, (0.5, 0.5)).size == 7934
    assert step.after(1.0, 2.0, (0.5, 0.5)).lesser == 5439
    assert step.after(1.0, 1.0, (0.5, 0.5)).size == 2944  # equal costs: no direction


def test_without_a_comparison_the_size_stays_ten_times_and_then_grows() -> None:
    control = replace(SizeControl.first(TOTAL), size=500, lesser=400)
    sizes = []
    for _ in range(WAITS + 3):
        control = control.after(1.0, None, (0.99, 0.99))
        sizes.append(control.size)
    assert sizes[:WAITS] == [500] * WAITS
    eta = 9980 / math.sqrt(2 * (WAITS + 1))
    assert sizes[WAITS] == math.floor(500 + eta)
    assert sizes[WAITS + 1 :] == [sizes[WAITS]] * 2
    assert control.updates == 1  # only the round that moved it counts for the window


def test_range_closes_in_to_what_was_visited_and_no_sooner_than_the_last_time() -> None:
    start = replace(SizeControl.first(TOTAL), size=1000, lesser=900, updates=WINDOW - 1, time=30)
    visited = replace(start, window_low=800, window_high=1200)
    closed = visited.after(1.0, 1.0, (0.0, 0.0))
    assert (closed.low, closed.high, closed.began, closed.epoch, closed.updates) == (533, 1800, 31, 31, 0)
    assert replace(visited, epoch=31).after(1.0, 1.0, (0.0, 0.0)).low == 533
    early = replace(visited, epoch=32).after(1.0, 1.0, (0.0, 0.0))
    assert (early.low, early.high, early.began, early.updates) == (20, TOTAL, 0, 0)
    wide = replace(start, window_low=300, window_high=4000).after(1.0, 1.0, (0.0, 0.0))
    assert (wide.low, wide.high) == (20, TOTAL)  # 5800 of 9980 is more than sqrt(2) - 1
    assert (wide.window_low, wide.window_high) == (TOTAL, 20)


def test_controller_survives_its_array() -> None:
    control = SizeControl.first(TOTAL).after(2.0, 1.0, (0.1, 0.2))
    assert SizeControl.from_array(control.to_array()) == control
    assert control.to_array().dtype == np.int64


def test_smallest_model_still_has_a_smaller_size() -> None:
    control = SizeControl.first(3)
    for _ in range(30):
        control = control.after(2.0, 1.0, (0.0, 0.0))
        assert 1 <= control.lesser < control.size <= 3
