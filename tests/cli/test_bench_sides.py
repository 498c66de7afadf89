"""The torch side of a bench does the work of the artifact beside it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from coordinator.cli.bench_sides import TorchStep
from coordinator.cli.model_arguments import ModelArguments
from edge.training.artifact_folder import MANIFEST_NAME
from export.bundle import export_artifact


@pytest.mark.slow
def test_factors_get_frobenius_decay_and_no_other(tmp_path: Path) -> None:
    prepared = ModelArguments("mlp", (16,), 4, 5, cut="fedhm:32").prepare()
    assert prepared.step.frobenius
    export_artifact(prepared.module, prepared.step, tmp_path / "artifact", build=prepared.build)
    side = TorchStep(tmp_path / "artifact" / MANIFEST_NAME, 5, torch.contiguous_format)
    module = copy.deepcopy(side._module)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    torch.nn.functional.cross_entropy(module(side._x), side._y).backward()
    side.run()
    found = dict(side._module.named_parameters())
    for pair in prepared.step.frobenius:
        u, v = before[pair.u], before[pair.v]
        decay = {pair.u: u @ v @ v.T, pair.v: u.T @ u @ v}
        for name, direction in decay.items():
            gradient = module.get_parameter(name).grad + 1e-4 * direction
            torch.testing.assert_close(found[name], before[name] - 0.01 * gradient, rtol=1e-5, atol=1e-8)
    rest = next(name for name in before if name not in prepared.step.factors)
    gradient = module.get_parameter(rest).grad + 1e-4 * before[rest]
    torch.testing.assert_close(found[rest], before[rest] - 0.01 * gradient, rtol=1e-5, atol=1e-8)
