"""Factors beside a frozen dense layer: what they compute, how many they are, how they begin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.cli.model_arguments import parse_cut
from coordinator.models.catalog import build_model, input_spec
from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.lora import (
    adapted_layers,
    additive_cut,
    additive_factors,
    gaussian_rows,
    learnt_differences,
    merged_tensors,
)
from coordinator.submodels.record import Factor, LayerCut
from coordinator.submodels.spectrum import truncated_svd
from edge.contracts.errors import ConfigError, PlanError
from export.bundle import export_artifact
from export.training_step import StepSpec

TINY = {"input_shape": (3, 8, 8), "width": 16, "depth": 1, "heads": 2}


def additive(rank: int) -> LayerCut:
    return LayerCut(factor=Factor("additive_lora", tuple(range(rank))))


def test_layer_computes_the_dense_one_until_u_is_trained() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 5))
    built = apply_cut(dense, {"0": additive(2)})
    x = torch.randn(3, 6)
    assert torch.equal(built(x), dense(x))
    assert [n for n, p in built.named_parameters() if p.requires_grad] == ["0.u", "0.v"]
    assert dict(built.named_parameters())["0.weight"].shape == (5, 6)


def test_layer_computes_the_sum_of_dense_and_product() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 5)).double()
    built = apply_cut(dense, {"0": additive(2)}).double()
    with torch.no_grad():
        built[0].u.normal_()
    merged = merged_tensors(module_tensors(built), {"0": additive(2)})
    assert merged.keys() == {"0.weight", "0.bias"}
    x = torch.randn(3, 6, dtype=torch.float64)
    expected = x @ torch.from_numpy(merged["0.weight"]).T + torch.from_numpy(merged["0.bias"])
    assert (built(x) - expected).abs().max() < 1e-14


@pytest.mark.parametrize("rank", [2, 4, 8, 16])
def test_trained_elements_of_the_published_transformer(rank: int) -> None:
    # 27,648 r factors (0.055 to 0.442 M, as published), beside a head of 384 x 10 + 10.
    module = build_model("vit_small", input_shape=(3, 224, 224), classes=10)
    assert sum(p.numel() for p in module.parameters()) == 21_669_514
    cut = additive_cut(module, adapted_layers(module, "head"), "head", rank)
    built = apply_cut(module.to("meta"), cut)
    trained = {n: p.numel() for n, p in built.named_parameters() if p.requires_grad}
    assert sum(trained.values()) == 27_648 * rank + 3_850
    assert sum(n for name, n in trained.items() if name.startswith("head.")) == 3_850


def test_everything_but_factors_and_head_is_frozen_positions_too() -> None:
    module = build_model("vit", **TINY)
    cut = additive_cut(module, adapted_layers(module, "head"), "head", 3)
    trained = {n for n, p in apply_cut(module, cut).named_parameters() if p.requires_grad}
    layers = ("blocks.0.attention.qkv", "blocks.0.attention.proj")
    assert trained == {f"{path}.{side}" for path in layers for side in "uv"} | {"head.weight", "head.bias"}
    assert cut["position"] == LayerCut(frozen=True)


def test_adapted_layers_follow_patterns_and_never_the_head() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    assert adapted_layers(module, "3") == ("0", "2")
    assert adapted_layers(module, "3", ("2", "3")) == ("2",)
    with pytest.raises(ConfigError, match=r"0, 2"):
        adapted_layers(module, "3", ("fc*",))
    with pytest.raises(PlanError, match="'0'"):
        adapted_layers(nn.Sequential(nn.Linear(4, 2)), "0")


def test_gaussian_rows_are_nested_and_of_unit_fan_in() -> None:
    many, few = gaussian_rows(5, 200, 50), gaussian_rows(5, 3, 50)
    assert np.array_equal(many[:3], few)
    assert abs(many.mean()) < 0.01
    assert abs(many.var() * 50 - 1) < 0.05
    assert not np.array_equal(gaussian_rows(6, 3, 50), few)


def test_factors_are_the_best_approximation_and_what_is_not_learnt_stays_trainable() -> None:
    rng = np.random.default_rng(0)
    learnt = (rng.standard_normal((7, 2)) @ rng.standard_normal((2, 9))).astype(np.float32)
    u, v = additive_factors(truncated_svd(learnt, 4), (7, 9), 4, path="fc", seed=3, round_index=1)
    assert np.abs(u @ v - learnt).max() < 1e-5
    assert not u[:, 2:].any()
    assert np.abs(v[2:]).max() > 0.1
    u, v = additive_factors(None, (7, 9), 4, path="fc", seed=3, round_index=1)
    assert not u.any()
    assert np.abs(v).max(1).min() > 0.1


def test_differences_of_mixed_cuts_leave_other_layers_alone() -> None:
    tensors = {"a.u": np.ones((2, 1)), "a.v": np.full((1, 3), 2.0), "b.u": np.ones((4, 1)), "b.v": np.ones((1, 4))}
    cut = {"a": additive(1), "b": LayerCut(factor=Factor("linear", (0,)))}
    result = learnt_differences(tensors, cut)
    assert result.keys() == {"a.weight", "b.u", "b.v"}
    assert np.array_equal(result["a.weight"], np.full((2, 3), 2.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"a.u": None}, "u None"), ({"a.v": np.ones((2, 3))}, r"v \(2, 3\), rank 1"), ({"a.u": np.ones(2)}, r"u \(2,\)")],
)
def test_half_a_pair_or_another_rank_is_refused(change: dict[str, np.ndarray | None], words: str) -> None:
    tensors = {"a.u": np.ones((2, 1)), "a.v": np.ones((1, 3))} | change
    with pytest.raises(PlanError, match=words):
        learnt_differences({n: v for n, v in tensors.items() if v is not None}, {"a": additive(1)})


@pytest.mark.parametrize(
    ("layer", "rank", "words"), [(nn.Conv2d(3, 4, 1), 1, "Conv2d"), (nn.Linear(4, 6), 5, "rank 5 asked for.*4")]
)
def test_layer_that_takes_no_factors_is_refused(layer: nn.Module, rank: int, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        apply_cut(nn.Sequential(layer), {"0": additive(rank)})


@pytest.mark.slow
@pytest.mark.runtime
def test_step_of_factors_passes_the_gate_and_trains_them_alone(tmp_path: Path) -> None:
    module = build_model("vit", classes=5, **TINY)
    cut, program = parse_cut(module, "fedlora:3")
    spec = StepSpec(input=input_spec("vit", input_shape=(3, 8, 8)), classes=5, batch=4, frozen=program.frozen)
    manifest = export_artifact(apply_cut(module, cut), spec, tmp_path / "artifact")
    trained = {t.name for t in manifest.tensors if t.role == "parameter"}
    layers = ("blocks.0.attention.qkv", "blocks.0.attention.proj")
    assert trained == {f"{path}.{side}" for path in layers for side in "uv"} | {"head.weight", "head.bias"}
    assert {t.name for t in manifest.tensors if t.role == "frozen"} >= {"position", "blocks.0.attention.qkv.weight"}
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
