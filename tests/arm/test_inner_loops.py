"""What the inner loops of convolutions and products reach on the boards' cores, by LLVM's models of them."""

from __future__ import annotations

import pytest

from tests.arm.inner_loops import Loop, loops_of_products, version
from tests.arm.userland import Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.runtime]

TILE = 24
"""Multiply-adds of a tile of 6 rows by 4 vectors for one k."""
LEAST = {"cortex-a53": 0.55, "cortex-a55": 1.1, "cortex-a72": 0.95, "neoverse-n1": 1.8}
"""Per cycle. A53 to A72 begin one in a cycle, Neoverse N1 (whose core is Cortex-A76's) and, by its model, A55 two."""
LEAST_OF_DOTS = {"cortex-a53": 0.4, "cortex-a55": 0.9, "cortex-a72": 0.95, "neoverse-n1": 1.9}
"""Of the products that are summed along both operands: one load for two multiply-adds."""
MODELLED_SINCE = {"neoverse-n1": 17}


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> list[Loop]:
    """Of products.cpp, for cortex-a53 as the boards' library."""
    try:
        return loops_of_products(tmp_path_factory.mktemp("loops"))
    except Unavailable as reason:
        pytest.skip(str(reason))


def reached(loop: Loop, core: str) -> float:
    try:
        if version() < MODELLED_SINCE.get(core, 0):
            pytest.skip(f"LLVM {version()} has no model of {core}; {MODELLED_SINCE[core]} and later have")
        found = loop.per_cycle(core)
    except Unavailable as reason:
        pytest.skip(str(reason))
    print(f"{core}: {loop.fmlas} of {len(loop.instructions)} instructions, {found:.2f} multiply-adds per cycle")
    return found


@pytest.mark.parametrize("core", LEAST)
def test_tiles_keep_the_multiplier_busy(loops: list[Loop], core: str) -> None:
    tiles = [loop for loop in loops if loop.fmlas in (TILE, 2 * TILE)]
    assert {loop.fmlas for loop in tiles} == {TILE, 2 * TILE}, "of rows that are neighbours, and of rows that lie apart"
    for loop in tiles:
        assert reached(loop, core) >= LEAST[core], "\n".join(loop.instructions)


@pytest.mark.parametrize("core", LEAST_OF_DOTS)
def test_dot_products_keep_the_multiplier_busy(loops: list[Loop], core: str) -> None:
    (largest,) = (loop for loop in loops if "dots<4, 4>" in loop.function)
    assert largest.fmlas == 16
    assert reached(largest, core) >= LEAST_OF_DOTS[core]


def test_no_inner_loop_spills(loops: list[Loop]) -> None:
    assert len(loops) >= 10
    spilling = [(loop.function, loop.on_stack) for loop in loops if loop.on_stack]
    assert not spilling
