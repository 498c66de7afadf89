"""The regression guard: every figure within its bound, and what its measures are made of."""

from __future__ import annotations

import pytest

from benchmarks.guard import BOUNDS, FIGURES, cpu_ratio, modules_loaded


def test_every_figure_has_a_bound() -> None:
    assert FIGURES.keys() == BOUNDS.keys()


def test_ratio_is_of_processor_time_of_the_fastest_blocks() -> None:
    def work(count: int) -> int:
        return sum(range(count))

    assert cpu_ratio(lambda: work(600_000), lambda: work(200_000)) == pytest.approx(3, rel=0.5)


def test_an_import_more_is_counted() -> None:
    assert modules_loaded("pass") == 0
    assert modules_loaded("import json") > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_within_its_bound(name: str) -> None:
    if "ExecuTorch" in name:
        pytest.importorskip("executorch")
    found = FIGURES[name]()
    assert found <= BOUNDS[name], f"{name}: {found:.2f}, at most {BOUNDS[name]:g}; docs/measurements/guard.md"
