"""Places of values in an arena: never two that live together on one byte, and hardly more bytes than live at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.runtimes.executorch.library import NativeProgram
from export.formats.executorch_program import lowering
from export.formats.executorch_program.arena import Lifetime, in_one_arena, offsets
from tests.export.executorch.executorch_rewritten import traced


def memory_planning() -> Any:
    return pytest.importorskip("executorch.exir.memory_planning")


def most_alive(values: list[Lifetime]) -> int:
    moments = range(max(v.last for v in values) + 1)
    return max(sum(v.size for v in values if v.first <= moment <= v.last) for moment in moments)


def drawn(seed: int, count: int) -> list[Lifetime]:
    draws = np.random.default_rng(seed)
    starts = draws.integers(0, 60, count)
    sizes, lengths = 16 * draws.integers(0, 65, count), draws.integers(0, 30, count)
    return [Lifetime(int(s), int(a), int(a + n)) for s, a, n in zip(sizes, starts, lengths, strict=True)]


@pytest.mark.parametrize("seed", range(12))
def test_values_that_live_together_never_overlap(seed: int) -> None:
    values = drawn(seed, 80)
    places, size = offsets(values)
    for i, (one, at) in enumerate(zip(values, places, strict=True)):
        assert at >= 0
        assert at + one.size <= size
        for other, there in zip(values[:i], places[:i], strict=True):
            if one.first <= other.last and other.first <= one.last and one.size and other.size:
                assert at + one.size <= there or there + other.size <= at
    assert most_alive(values) <= size <= 1.15 * most_alive(values)


def test_two_small_values_that_are_free_hold_a_large_one() -> None:
    values = [Lifetime(8, 0, 1), Lifetime(8, 0, 2), Lifetime(16, 3, 4)]
    assert offsets(values)[1] == 16
    assert offsets([]) == ([], 0)


@pytest.mark.slow
@pytest.mark.runtime
def test_programs_take_the_smaller_plan_and_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 64)

    def of_three_sizes(x: torch.Tensor) -> list[torch.Tensor]:
        pair = torch.tanh(x), torch.sigmoid(x)
        total = (pair[0] * pair[1]).sum(0)
        # Two objects of the sizes above have room for the larger two of these, and no more.
        three = torch.tanh(x[:48]), torch.sigmoid(x[:48]), torch.tanh(x[:32])
        return [total + (three[0] * three[1]).sum(0) * three[2].sum(0)]

    program = traced(of_three_sizes, [x])
    ours = lowering.lower(program, program.outputs, batch=1)
    monkeypatch.setattr(lowering, "in_one_arena", memory_planning().greedy)
    stock = lowering.lower(program, program.outputs, batch=1)
    assert ours.planned_bytes < stock.planned_bytes
    results = []
    for name, made in (("ours", ours), ("stock", stock)):
        (tmp_path / name).write_bytes(made.data)
        native = NativeProgram(tmp_path / name)
        native.run([x.numpy()])
        results.append(native.output(0, (64,)).copy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], of_three_sizes(x)[0].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.runtime
def test_values_inside_of_others_are_left_to_the_runtimes_own_planner() -> None:
    from executorch.exir.tensor import TensorSpec

    specs = [TensorSpec.from_tensor(torch.zeros(8)) for _ in range(2)]
    for spec in specs:
        spec.lifetime = [0, 1]
    specs[1].storage_base, specs[1].storage_base_offset = specs[0], 0
    graph = torch.fx.GraphModule({}, torch.fx.Graph())
    plan = in_one_arena(16, specs, graph, None)
    assert isinstance(plan, memory_planning().MemoryAlgoResult)
    assert plan.spec_dict[specs[1]].mem_offset == plan.spec_dict[specs[0]].mem_offset
