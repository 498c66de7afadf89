"""Every registered method is on one of the two lists, and those of one cut aggregate as their list says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.exporting import dense_module
from coordinator.methods import METHODS, Update, build_method
from coordinator.privacy.one_cut import ONE_CUT, OTHERS, refusal_of
from tests.conformance.method_runs import CASES, run_config


def test_every_method_is_on_one_list() -> None:
    assert sorted([*ONE_CUT, *OTHERS]) == sorted(METHODS)
    assert all(refusal_of(name) for name in OTHERS)
    assert "not known" in refusal_of("of-tomorrow")


@pytest.mark.parametrize("name", ONE_CUT)
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
