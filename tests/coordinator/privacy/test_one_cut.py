"""Methods that say that their devices share one cut aggregate as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import Update, build_method
from coordinator.privacy.one_cut import summable_methods
from tests.conformance.method_runs import CASES, run_config


def test_methods_of_one_cut_say_so() -> None:
    assert {
        *("adapter", "fedavg", "iterative_magnitude", "lottery_ticket", "prefix", "prompt", "small_model", "slora"),
        *("snip", "synflow"),
    } <= set(summable_methods())


@pytest.mark.parametrize("name", summable_methods())
def test_mean_of_updates_stands_for_the_updates(name: str, tmp_path: Path) -> None:
    config = run_config(CASES[name], tmp_path)
    method = build_method(name, dense_module(config), config.method.options)
    state = method.init()
    level = method.levels()[-1]
    assert len(method.levels()) == 1
    cuts = [method.cut(state, level, round_index=0, device=f"d{i}", seed=1) for i in range(3)]
    assert all(c.cut == cuts[0].cut for c in cuts)
    assert not cuts[0].program.accumulators
    assert not cuts[0].program.probe
    counts, generator = (10, 20, 70), np.random.default_rng(0)
    sent = {n: v for n, v in cuts[0].tensors.items() if v.dtype.kind == "f" and n not in cuts[0].program.frozen}
    trained = [{n: v + generator.normal(size=v.shape).astype(v.dtype) for n, v in sent.items()} for _ in counts]
    mean = {n: sum(t[n].astype(np.float64) * c / 100 for t, c in zip(trained, counts, strict=True)) for n in sent}
    each = [
        Update(f"d{i}", level, cuts[0].cut, tensors, count)
        for i, (tensors, count) in enumerate(zip(trained, counts, strict=True))
    ]
    whole = Update("sum", level, cuts[0].cut, {n: np.float32(v) for n, v in mean.items()}, 100)
    apart, together = method.aggregate(state, each), method.aggregate(state, [whole])
    assert apart.tensors.keys() == together.tensors.keys()
    for tensor, value in apart.tensors.items():
        np.testing.assert_allclose(value, together.tensors[tensor], rtol=2e-5, atol=2e-6, err_msg=tensor)
