"""PriSM: exact round trips, sampling probabilities, per-entry counts, and the published sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.methods import Method, State, Update, build_method
from coordinator.methods.fedavg import FULL
from coordinator.methods.prism import SIGMA, U, V
from coordinator.models.catalog import build_model, example_input, input_spec
from coordinator.submodels.build import apply_cut
from coordinator.submodels.component_sampling import drawn_components
from coordinator.submodels.costs import cut_costs
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.manifest import InputSpec
from edge.contracts.streams import stream_seed
from export.bundle import export_artifact
from export.training_step import FactorPair, StepSpec


class Residual(nn.Module):
    """A stem, a residual block, a strided convolution and a classifier on a flattened map."""

    def __init__(self) -> None:
        super().__init__()
        self.input_spec = InputSpec(layout="chw", shape=(3, 4, 4))
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.down = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.fc = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.conv(x))
        return self.fc(torch.relu(self.down(x)).flatten(1))


def method(options: dict[str, Any], name: str = "prism") -> tuple[Method, State]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = build_method(name, Residual(), options)
    return built, built.init()


def update(built: Method, state: State, level: int, device: str, change: float = 0.0) -> Update:
    submodel = built.cut(state, built.levels()[level], round_index=state.round, device=device, seed=3)
    tensors = {n: v + np.float32(change) for n, v in submodel.tensors.items() if v.dtype.kind == "f"}
    return Update(device, submodel.level, submodel.cut, tensors, 4)


@pytest.mark.parametrize("rows", [{"rows": r} for r in ("first", "random", "all")] + [{"input-cut": False}], ids=str)
@pytest.mark.parametrize("sampling", ["power", "uniform", "softmax", "top"])
def test_without_training_the_model_comes_back_to_the_bit(rows: dict[str, Any], sampling: str) -> None:
    built, state = method({"levels": [0.5, 0.25], "sampling": sampling, **rows})
    updates = [update(built, state, i % 2, f"pi-{i}") for i in range(5)]
    after = built.refresh(built.aggregate(state, updates))
    assert all(np.array_equal(after.tensors[n], v) for n, v in state.tensors.items())
    assert all(np.array_equal(after.extra[n], v) for n, v in state.extra.items())
    for path in ("conv", "down"):
        product = state.extra[U + path].reshape(len(state.extra[U + path]), -1).astype(np.float64) @ state.extra[
            V + path
        ].reshape(len(state.extra[V + path]), -1)
        weight = state.tensors[f"{path}.weight"]
        assert np.abs(product.reshape(weight.shape) - weight).max() < 1e-6


def test_entries_are_means_over_those_who_held_them_and_the_rest_stays() -> None:
    built, state = method({"levels": [0.5], "rows": "random"})
    updates = [update(built, state, 0, "a", 0.5), update(built, state, 0, "b", -0.25)]
    after = built.aggregate(state, updates)
    before, now = state.extra[U + "conv"][..., 0, 0], after.extra[U + "conv"][..., 0, 0]
    held = np.zeros((2, *before.shape), bool)
    for i, entry in enumerate(updates):
        record = entry.cut["conv"]
        assert record.factor is not None
        held[i][np.ix_(record.out_idx or range(8), record.factor.components)] = True
    change = np.where(held[0] & held[1], 0.125, np.where(held[0], 0.5, np.where(held[1], -0.25, 0.0)))
    assert held.any(0).sum() < held[0].size  # somebody held nothing of some entry
    np.testing.assert_allclose(now - before, change, atol=1e-6)
    untouched = ~held.any(0)
    assert np.array_equal(now[untouched], before[untouched])


def test_refresh_decomposes_what_moved_anew() -> None:
    built, state = method({"levels": [0.5], "rows": "first"})
    moved = built.aggregate(state, [update(built, state, 0, "a", 0.1)])
    after = built.refresh(moved)
    for path in ("conv", "down"):
        weight = after.tensors[f"{path}.weight"]
        values = np.linalg.svd(weight.reshape(len(weight), -1).astype(np.float64), compute_uv=False)
        np.testing.assert_allclose(after.extra[SIGMA + path], values, rtol=1e-4, atol=1e-5)
        norms = np.square(after.extra[U + path]).sum((0, 2, 3))
        np.testing.assert_allclose(norms, values, rtol=1e-3, atol=1e-5)


def expected_devices(sampling: str, kappa: float = 0.0) -> np.ndarray:
    """Of 20 devices with 13 of 64 components each, how many hold each; singular values fall on a line to a tenth."""
    sigma = np.linspace(1, 0.1, 64).astype(np.float32)
    counts, trials = np.zeros(64), 1500
    for trial in range(trials):
        stream = stream_seed(1, "prism/conv", trial, "pi")
        drawn = drawn_components(sigma, 13, sampling, kappa=kappa, stream=stream)
        assert len(set(drawn)) == 13
        counts[list(drawn)] += 1
    expected = counts / trials * 20
    assert expected.sum() == pytest.approx(13 * 20)
    return expected


@pytest.mark.parametrize(
    ("kappa", "first", "last"), [(0, 4.06, 4.06), (1, 7.0, 0.8), (2.5, 10.8, 0.035), (4, 14.3, 0.0)]
)
def test_expected_devices_per_component_are_those_of_sequential_drawing(
    kappa: float, first: float, last: float
) -> None:
    expected = expected_devices("power", kappa)
    assert expected[:2].mean() == pytest.approx(first, rel=0.07)
    assert expected[-2:].mean() == pytest.approx(last, abs=max(0.05, 0.15 * last))


def test_samplings_of_the_ablation_lie_between_equal_chances_and_the_largest() -> None:
    uniform, softmax, top = (expected_devices(sampling) for sampling in ("uniform", "softmax", "top"))
    assert np.array_equal(uniform, expected_devices("power", 0.0))
    assert uniform[[0, -1]] == pytest.approx([260 / 64, 260 / 64], rel=0.08)
    # e^0.9 between first and last: nearly uniform, as the paper's ablation finds.
    assert 1.9 < softmax[:4].mean() / softmax[-4:].mean() < np.exp(0.9) + 0.1
    assert np.array_equal(top, np.where(np.arange(64) < 13, 20.0, 0.0))


def test_rows_have_a_ratio_of_their_own() -> None:
    """Of the 8 channels that the shortcut joins and the 12 behind it; components by the level as before."""
    built, _ = method({"levels": [0.25], "row-ratio": 0.5})
    cut = built.cut_shape(built.levels()[0], round_index=0, device="", seed=0)
    assert {path: len(record.out_idx or ()) for path, record in cut.items() if record.out_idx} == {
        "stem": 4, "norm": 4, "conv": 4, "down": 6,
    }  # fmt: skip
    assert len(cut["conv"].factor.components) == 2  # a quarter of 8
    alone, _ = method({"levels": [0.25], "row-ratio": 0.5, "input-cut": False})
    rows = alone.cut_shape(alone.levels()[0], round_index=0, device="", seed=0)
    assert rows["conv"].out_idx == (0, 1, 2, 3)
    assert rows["conv"].in_idx is None
    with pytest.raises(ConfigError, match=r"row-ratio: 1\.5 given"):
        method({"row-ratio": 1.5})
    with pytest.raises(ConfigError, match="with rows = 'all', which keeps every one"):
        method({"row-ratio": 0.4, "rows": "all"})


def test_warm_up_rounds_take_the_largest_components() -> None:
    built, state = method({"levels": [0.25], "sampling": "uniform", "warm-up-rounds": 5})
    level = built.levels()[0]
    drawn = [
        built.cut(state, level, round_index=r, device="a", seed=1).cut["conv"].factor.components for r in range(20)
    ]
    assert set(drawn[:5]) == {(0, 1)}
    assert len(set(drawn[5:])) > 5


def test_every_level_may_have_its_own_exponent() -> None:
    built, state = method({"levels": [0.25, 0.5], "kappas": [80, 0]})
    small, large = built.levels()[::-1]
    drawn = {
        level: [
            built.cut(state, level, round_index=r, device="a", seed=1).cut["conv"].factor.components for r in range(9)
        ]
        for level in (small, large)
    }
    assert set(drawn[small]) == {(0, 1)}  # the largest ones, always
    assert len(set(drawn[large])) > 1
    with pytest.raises(ConfigError, match="kappas: 1 given, one for each of 2 levels"):
        method({"levels": [0.25, 0.5], "kappas": [4]})


def test_draws_are_a_function_of_seed_round_and_device() -> None:
    built, state = method({"levels": [0.5]})
    level = built.levels()[0]
    one = built.cut(state, level, round_index=2, device="a", seed=1)
    assert one.cut == built.cut(state, level, round_index=2, device="a", seed=1).cut
    others = [(3, "a", 1), (2, "b", 1), (2, "a", 2)]
    assert any(built.cut(state, level, round_index=r, device=d, seed=s).cut != one.cut for r, d, s in others)


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "millions"), [(0.8, 7.95), (0.6, 4.48), (0.4, 1.99), (0.2, 0.50)])
def test_block_convolutions_have_the_published_sizes(ratio: float, millions: float) -> None:
    dense = build_model("resnet18")
    built = build_method("prism", dense, {"levels": [ratio]})
    cut = built.cut_shape(built.levels()[0], round_index=0, device="", seed=0)
    factors = {n: p for n, p in apply_cut(dense, cut).named_parameters() if n.endswith((".u", ".v"))}
    assert len(factors) == 2 * 16
    assert sum(p.numel() for p in factors.values()) / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "millions"), [(0.8, 9.69), (0.6, 7.11), (0.4, 4.63), (0.2, 2.27)])
def test_block_convolutions_that_read_all_channels_are_larger(ratio: float, millions: float) -> None:
    """By hand: V r x 9M over all inputs and U r x r, which are not the sizes of the paper's Table 1."""
    dense = build_model("resnet18")
    built = build_method("prism", dense, {"levels": [ratio], "input-cut": False})
    cut = built.cut_shape(built.levels()[0], round_index=0, device="", seed=0)
    part = apply_cut(dense, cut)
    factors = {n: p for n, p in part.named_parameters() if n.endswith((".u", ".v"))}
    assert len(factors) == 2 * 16
    assert sum(p.numel() for p in factors.values()) / 1e6 == pytest.approx(millions, abs=0.006)
    others = {n: p.shape for n, p in part.named_parameters() if n not in factors}
    assert others == {n: p.shape for n, p in dense.named_parameters() if n in others}  # stem, shortcuts, norms
    own = cut_costs(dense, cut, input_spec("resnet18"))
    table = build_method("prism", dense, {"levels": [ratio]})
    narrow = table.cut_shape(table.levels()[0], round_index=0, device="", seed=0)
    assert own.macs > cut_costs(dense, narrow, input_spec("resnet18")).macs


def test_channels_without_a_row_are_zeros_before_the_norm() -> None:
    built, state = method({"levels": [0.5], "input-cut": False, "sampling": "uniform"})
    submodel = built.cut(state, built.levels()[0], round_index=0, device="pi", seed=4)
    assert {p: r.spread for p, r in submodel.cut.items()} == {"conv": 8, "down": 12}
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3, 4, 4)).astype(np.float32))
    masked = Residual()
    masked.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.tensors.items()})
    for path in ("conv", "down"):
        record, layer = submodel.cut[path], masked.get_submodule(path)
        assert record.factor is not None
        assert record.out_idx == tuple(range(len(layer.weight) // 2))
        chosen, rows = list(record.factor.components), len(record.out_idx)
        product = state.extra[U + path][:, chosen, 0, 0] @ state.extra[V + path][chosen].reshape(len(chosen), -1)
        product[rows:] = 0
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(product).reshape(layer.weight.shape))
            if layer.bias is not None:
                layer.bias[rows:] = 0
    part = apply_cut(Residual(), submodel.cut, submodel.tensors)
    assert torch.allclose(part(x), masked(x), atol=1e-5)
    normed = nn.BatchNorm2d(12)
    with torch.no_grad():
        normed.bias.copy_(torch.arange(12))
        out = normed(part.down(part.stem(x)))
    assert torch.equal(out[:, 6:], torch.arange(6, 12).reshape(1, 6, 1, 1).expand(6, 6, 2, 2).float())


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"input-cut": False}], ids=["input cut", "rows alone"])
@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch", "onnxruntime_training"])
def test_step_of_a_cut_agrees_with_torch(runtime: str, options: dict[str, Any], tmp_path: Path) -> None:
    built, _ = method({"levels": [0.4], **options})
    cut = built.cut_shape(built.levels()[0], round_index=0, device="", seed=0)
    program = built.program(cut)
    step = StepSpec(
        input=Residual().input_spec,
        classes=5,
        batch=6,
        norm="batch",
        frobenius=tuple(FactorPair(u, v) for u, v in program.frobenius),
    )
    manifest = export_artifact(apply_cut(Residual(), cut), step, tmp_path / "artifact", runtime=runtime)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


@pytest.mark.parametrize(("ratio", "millions"), [(0.8, 9.92), (0.6, 7.45), (0.4, 4.96), (0.2, 2.50)])
def test_orthdrop_has_the_published_sizes(ratio: float, millions: float) -> None:
    dense = build_model("resnet18")
    built = build_method("orthdrop", dense, {"levels": [ratio]})
    cut = built.cut_shape(built.levels()[0], round_index=0, device="", seed=0)
    assert all(record.out_idx is None for record in cut.values())
    factors = {n: p for n, p in apply_cut(dense, cut).named_parameters() if n.endswith((".u", ".v"))}
    assert sum(p.numel() for p in factors.values()) / 1e6 == pytest.approx(millions, abs=0.03)


def test_transformers_keep_their_residual_stream_whole() -> None:
    dense = build_model("vit")
    built = build_method("prism", dense, {"levels": [0.5]})
    cut = built.cut_shape(built.levels()[0], round_index=0, device="", seed=0)
    narrowed = {path for path, record in cut.items() if record.out_idx is not None}
    assert narrowed == {f"blocks.{i}.fc1" for i in range(4)}
    assert apply_cut(dense, cut)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_transformers_may_keep_all_rows() -> None:
    dense = build_model("vit")
    built = build_method("prism", dense, {"levels": [0.5], "rows": "all"})
    cut = built.cut_shape(built.levels()[0], round_index=0, device="", seed=0)
    assert set(cut) == {f"blocks.{i}.{n}" for i in range(4) for n in ("attention.qkv", "attention.proj", "fc1", "fc2")}
    assert all(record.out_idx is None and record.in_idx is None for record in cut.values())
    sizes = {"attention.qkv": 384 + 128, "attention.proj": 256, "fc1": 512 + 128, "fc2": 512 + 128}
    factors = {n: p.numel() for n, p in apply_cut(dense, cut).named_parameters() if n.endswith((".u", ".v"))}
    assert sum(factors.values()) == 4 * 64 * sum(sizes.values())


KINDS = {
    "mlp": {"input_shape": (64,), "hidden": [24, 16]},
    "conv2": {"classes": 5},
    "vit": {"width": 16, "depth": 1, "heads": 2},
    "lstm": {"hidden": 16},
    "resnet8": {},
}
"""Linear layers, convolutions behind a flatten, a transformer, a recurrent network, residuals."""


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(KINDS))
@pytest.mark.parametrize("name", ["prism", "orthdrop", "origdrop"])
def test_every_kind_of_model_is_cut_runs_and_comes_back(name: str, model: str) -> None:
    dense = build_model(model, **KINDS[model])
    built = build_method(name, dense, {"levels": [0.5]})
    state = built.init()
    submodel = built.cut(state, built.levels()[0], round_index=0, device="pi", seed=1)
    part = apply_cut(dense, submodel.cut, submodel.tensors)
    assert sum(p.numel() for p in part.parameters()) < sum(p.numel() for p in dense.parameters())
    x = example_input(model, input_shape=dense.input_spec.shape)
    assert part(x).shape == dense(x).shape
    assert any(record.factor is not None for record in submodel.cut.values()) is (name != "origdrop")
    narrowed = any(record.out_idx is not None for record in submodel.cut.values())
    assert narrowed is (name == "origdrop" or (name == "prism" and model != "lstm"))
    tensors = {n: v for n, v in submodel.tensors.items() if v.dtype.kind == "f"}
    after = built.refresh(built.aggregate(state, [Update("pi", submodel.level, submodel.cut, tensors, 4)]))
    assert all(np.array_equal(after.tensors[n], v) for n, v in state.tensors.items())


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1"):
        method({"levels": [1.5]})
    with pytest.raises(ConfigError, match="one of first, random, all"):
        method({"rows": "some"})
    with pytest.raises(ConfigError, match="input-cut: false with rows = 'random'"):
        method({"rows": "random", "input-cut": False})
    built, _ = method({})
    with pytest.raises(PlanError, match="no level 'full'"):
        built.cut_shape(FULL, round_index=0, device="", seed=0)
