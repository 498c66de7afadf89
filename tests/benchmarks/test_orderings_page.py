"""The page of the orderings: means, deviations, verdicts and times to a target, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import claims, orderings
from benchmarks.comparisons import SEEDS, Comparison, Entry
from benchmarks.orderings import COMPARISONS, configuration, grid
from benchmarks.orderings_page import accuracy_within, page, reach
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import build_method
from coordinator.planning.capacity_levels import find_level

SCORED = Comparison(
    "scored", "A > B > C", (Entry("a", "f", model="step"), Entry("b", "f"), Entry("c", "f")), (("a", "b"), ("b", "c"))
)
TIMED = Comparison("timed", "fast in half of slow", (Entry("fast", "f"), Entry("slow", "f")), (("fast", "slow"),), True)


def run(*accuracies: float, size: int = 1_000_000, seconds: float = 10.0, model: str = "server") -> dict[str, Any]:
    rounds = [
        {
            "bytes_down": size,
            "bytes_up": size,
            "simulated_s": seconds,
            "evaluation": {model: {"accuracy": accuracy}, "other": {"accuracy": 0.125}},
        }
        for accuracy in accuracies
    ]
    return {"rounds": rounds, "wall_s": 1.0}


def test_means_deviations_and_verdicts() -> None:
    results = {
        ("scored", "a", seed): run(value, model="step") for seed, value in zip(SEEDS, (0.5, 0.6, 0.7), strict=True)
    }
    results |= {("scored", "b", seed): run(value) for seed, value in zip(SEEDS, (0.4, 0.5, 0.6), strict=True)}
    results |= {("scored", "c", seed): run(value) for seed, value in zip(SEEDS, (0.5, 0.4, 0.7), strict=True)}
    shown = page([SCORED], results)
    # Sample deviation of 0.5, 0.6, 0.7 is 0.1.
    assert "| a | step | **60.0 ± 10.0** | 50.0, 60.0, 70.0 | 60.0 ± 10.0 | other 12.5 ± 0.0 | 1 | 1 | 10 |" in shown
    assert "| a > b | +10.0 | 3 of 3 | yes |" in shown
    assert "| b > c | -3.3 | 1 of 3 | **no** |" in shown


def test_ordering_of_the_means_alone_is_called_that() -> None:
    results = {("scored", "b", seed): run(value) for seed, value in zip(SEEDS, (0.4, 0.5, 0.9), strict=True)}
    results |= {("scored", "c", seed): run(value) for seed, value in zip(SEEDS, (0.5, 0.4, 0.7), strict=True)}
    shown = page([SCORED], results)
    assert "| b > c | +6.7 | 2 of 3 | in the mean |" in shown
    assert "| a | step | not run |" in shown
    assert "| a > b | | | not run |" in shown


def test_equal_bytes_are_those_of_the_cheapest_method() -> None:
    dear = run(0.25, 0.375, 0.5, 0.625, size=2_000_000)
    cheap = run(0.2, 0.3, 0.4, 0.5)
    # The cheap run takes 8 MB in all, the dear one as much after two of its rounds.
    assert accuracy_within(dear, "server", 8_000_000) == 0.375
    assert accuracy_within(dear, "server", 3_999_999) is None
    shown = page([SCORED], {("scored", "b", 1): dear, ("scored", "c", 1): cheap})
    assert "| b | server | **62.5** | 62.5 | 37.5 |" in shown
    assert "| c | server | **50.0** | 50.0 | 50.0 |" in shown


def test_time_to_a_target_is_that_of_the_first_evaluation_there() -> None:
    assert reach(run(0.5, 0.8, 0.7, 0.9), 0.8) == (2, 20.0, 4.0)
    assert reach(run(0.5, 0.6), 0.8) is None


def test_shares_of_the_time_and_what_was_not_reached() -> None:
    results = {("timed", "fast", seed): run(0.5, 0.85, seconds=4.0) for seed in SEEDS}
    results |= {("timed", "slow", seed): run(0.5, 0.85, seconds=10.0) for seed in SEEDS}
    shown = page([TIMED], results)
    assert "| 1 | 8 | 2 | 4 | 20 | 2 | 4 | 0.40 |" in shown
    assert "Share 0.40 ± 0.00; at most 0.50: yes." in shown
    assert "| 1 | not reached | | | not reached | | |  |" in shown  # the target of 0.9
    third = replace(TIMED, share=1 / 3)
    assert "Share 0.40 ± 0.00; at most 0.33: **no**." in page([third], results)


def test_grid_has_every_method_before_the_next_seed() -> None:
    runs = list(grid(COMPARISONS, SEEDS))
    first = [(comparison.name, entry.label) for comparison, entry, seed in runs if seed == SEEDS[0]]
    assert len(runs) == len(SEEDS) * len(first) == len(set((c.name, e.label, s) for c, e, s in runs))
    assert [seed for _, _, seed in runs] == sorted(seed for _, _, seed in runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comparison", "entry", "examples"),
    [
        (comparison, entry, examples)
        for comparisons, examples in ((COMPARISONS, orderings.EXAMPLES), (claims.CLAIMS, claims.EXAMPLES))
        for comparison in comparisons
        for entry in comparison.entries
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_every_method_builds_with_the_levels_and_models_it_is_compared_by(
    comparison: Comparison, entry: Entry, examples: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("APPORTION_DATA", str(tmp_path))
    config = configuration(entry, 7, examples)
    assert config.federation.seed == 7
    assert config.federation.rounds == entry.rounds or not entry.rounds
    method = build_method(config.method.name, dense_module(config), config.method.options)
    assert entry.model in method.eval_models(method.init())
    for group in config.cohort.local:
        if group.level:
            find_level(group.level, method.levels(), path="$.cohort.local")
    assert {label for claim in comparison.claims for label in claim} <= {e.label for e in comparison.entries}
