"""LSTMs of factors: the dense layer's results, really smaller, cut and put back exactly, trained alike on a runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.methods import build_method
from coordinator.models.catalog import build_model, input_spec
from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.costs import cut_costs
from coordinator.submodels.factorize import factorize_tensors, recover_tensors
from coordinator.submodels.layout import factorizable_layers, factorized_cut, hybrid_layout
from coordinator.submodels.record import Cut, Factor, LayerCut
from coordinator.submodels.recurrent import FactorizedLSTM
from edge.contracts.errors import PlanError
from edge.contracts.manifest import ArtifactManifest, InputSpec
from export.bundle import export_artifact
from export.training_step import FactorPair, Optimizer, StepSpec

SMALL = InputSpec(layout="tokens", shape=(5,), dtype="int64", vocabulary=11)


class Reader(nn.Module):
    """Embedding, LSTM, classifier on the last outputs."""

    def __init__(self, *, batch_first: bool = True, bidirectional: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.input_spec = SMALL
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, 2, batch_first=batch_first, bidirectional=bidirectional, bias=bias)
        self.fc = nn.Linear(16 if bidirectional else 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embedding(x)
        steps, (last, _) = self.lstm(tokens if self.lstm.batch_first else tokens.transpose(0, 1))
        return self.fc(steps[:, -1] if self.lstm.batch_first else steps[-1]) + last.sum() * 0


def reader(**options: bool) -> Reader:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Reader(**options).double()


def full_rank(module: nn.Module) -> dict[str, LayerCut]:
    weights = factorizable_layers(module)
    return {
        path: LayerCut(factor=Factor("recurrent", tuple(range(min(weight.shape)))))
        for path, weight in weights.items()
        if isinstance(weight, nn.Parameter)
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": False}, {"bidirectional": True}, {"bias": False}],
    ids=["plain", "time first", "both directions", "no bias"],
)
def test_factors_of_full_rank_give_what_the_layer_gives(options: dict[str, bool]) -> None:
    module = reader(**options)
    cut = full_rank(module)
    assert len(cut) == (8 if options.get("bidirectional") else 4)
    tensors = {n: v.astype(np.float64) for n, v in factorize_tensors(module_tensors(module), cut).items()}
    built = apply_cut(module, cut, tensors)
    assert isinstance(built.lstm, FactorizedLSTM)
    x = torch.arange(20).reshape(4, 5) % 11
    assert torch.allclose(built(x), module(x), atol=1e-6)  # factors are float32
    states = torch.randn(2, 2 * len(cut) // 4, 4, 8, dtype=torch.float64)
    inputs = torch.randn(4, 5, 6, dtype=torch.float64)
    inputs = inputs if module.lstm.batch_first else inputs.transpose(0, 1)
    (_, got), (_, wanted) = built.lstm(inputs, (states[0], states[1])), module.lstm(inputs, tuple(states))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, wanted, strict=True))


def test_some_matrices_may_stay_as_they_are() -> None:
    module = reader()
    cut = {"lstm.weight_hh_l0": full_rank(module)["lstm.weight_hh_l0"]}
    built = apply_cut(module, cut)
    names = [n for n, _ in built.lstm.named_parameters() if "weight" in n]
    assert sorted(names) == [
        "weight_hh_l0.u", "weight_hh_l0.v", "weight_hh_l1", "weight_ih_l0", "weight_ih_l1",
    ]  # fmt: skip
    assert [n for n, _ in module.lstm.named_parameters()][:2] == ["weight_ih_l0", "weight_hh_l0"]  # a copy was changed


def test_factors_are_put_back_to_the_gate_matrices() -> None:
    tensors = module_tensors(reader().float())
    cut = full_rank(reader())
    back = recover_tensors(factorize_tensors(tensors, cut), cut)
    assert back.keys() == tensors.keys()
    assert max(np.abs(back[n] - tensors[n]).max() for n in tensors) < 1e-6


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("fc", r"layer 'fc': no recurrent"),
        ("lstm.bias_ih_l0.u", "lstm.bias_ih_l0"),
        ("lstm.weight_hh_l7", "weight_hh_l7"),
    ],
)
def test_what_is_no_gate_matrix_is_refused_by_name(path: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        apply_cut(reader(), {path: LayerCut(factor=Factor("recurrent", (0,)))})


@pytest.mark.parametrize("layer", [nn.LSTM(4, 4, 2, dropout=0.5), nn.LSTM(4, 4, proj_size=2), nn.GRU(4, 4)], ids=str)
def test_layers_without_the_form_have_no_matrices_to_factorize(layer: nn.Module) -> None:
    module = nn.Module()
    module.steps = layer
    assert factorizable_layers(module) == {}


def test_fedhm_ranks_of_an_lstm_are_relative_to_its_hidden_units() -> None:
    dense = build_model("lstm")
    cut = factorized_cut(dense, hybrid_layout(dense), 4)
    ranks = {path: record.factor.rank for path, record in cut.items() if record.factor}
    # 512 x 8 inputs of the first layer would not become smaller at rank 128 / 4.
    assert ranks == {"lstm.weight_hh_l0": 32, "lstm.weight_ih_l1": 32, "lstm.weight_hh_l1": 32}
    params = sum(p.numel() for p in apply_cut(dense, cut).parameters())
    assert params == 90 * 8 + 512 * 8 + 3 * 32 * (512 + 128) + 4 * 512 + 128 * 90 + 90


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.6, 0.4, 0.2])
def test_prism_decomposes_every_gate_matrix_and_no_channel_of_an_lstm(keep: float) -> None:
    dense, spec = build_model("lstm"), input_spec("lstm")
    method = build_method("prism", dense, {"levels": [keep], "kappa": 2})
    level = method.levels()[0]
    submodel = method.cut(method.init(), level, round_index=0, device="pi", seed=1)
    assert set(submodel.cut) == {f"lstm.weight_{kind}_l{i}" for kind in ("ih", "hh") for i in (0, 1)}
    assert all(record.out_idx is None and record.in_idx is None for record in submodel.cut.values())
    ranks = {"lstm.weight_ih_l0": int(np.ceil(8 * keep))}
    expected = 90 * 8 + 4 * 512 + 128 * 90 + 90
    for path in submodel.cut:
        rank, columns = ranks.get(path, int(np.ceil(round(128 * keep, 9)))), 8 if path in ranks else 128
        assert submodel.tensors[f"{path}.u"].shape == (512, rank)
        assert submodel.tensors[f"{path}.v"].shape == (rank, columns)
        expected += rank * (512 + columns)
    whole, costs = cut_costs(dense, {}, spec), cut_costs(dense, submodel.cut, spec)
    assert costs.params == expected == sum(v.size for v in submodel.tensors.values())
    assert costs.bytes_up == costs.bytes_down == 4 * expected < whole.bytes_up
    assert (costs.macs, costs.params) < (whole.macs, whole.params)
    assert len(submodel.program.frobenius) == 4


def macs(keep_rank: dict[str, int], batch: int) -> float:
    """By hand, per example: low-rank inputs, whole hidden matrices, and their making once per batch."""
    first, second, hidden = keep_rank["first"], keep_rank["second"], keep_rank["hidden"]
    inputs = 80 * (first * (8 + 512) + second * (128 + 512))
    return inputs + 2 * 80 * 512 * 128 + 2 * 512 * hidden * 128 / batch + 128 * 90


def test_macs_of_factors_are_those_that_run() -> None:
    dense = build_model("lstm")
    method = build_method("prism", dense, {"levels": [0.25]})
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    costs = cut_costs(dense, cut, input_spec("lstm"), batch=32)
    assert costs.macs == macs({"first": 2, "second": 32, "hidden": 32}, 32)


def step_of(cut: Cut, spec: InputSpec, classes: int, batch: int) -> StepSpec:
    pairs = tuple(FactorPair(f"{path}.u", f"{path}.v") for path in sorted(cut))
    optimizer = Optimizer(momentum=True, weight_decay=True)
    return StepSpec(input=spec, classes=classes, batch=batch, frobenius=pairs, optimizer=optimizer)


def exported(folder: Path, runtime: str, rank: int = 3, **options: bool) -> ArtifactManifest:
    module = reader(**options).float()
    cut = {p: LayerCut(factor=Factor("recurrent", tuple(range(rank)))) for p in full_rank(module)}
    return export_artifact(apply_cut(module, cut), step_of(cut, SMALL, 3, 4), folder / "artifact", runtime=runtime)


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "bias": False}], ids=["plain", "both directions"])
def test_step_of_factors_agrees_with_torch(options: dict[str, bool], tmp_path: Path) -> None:
    manifest = exported(tmp_path, "onnxruntime", **options)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    slots = {t.name for t in manifest.tensors if t.role == "slot"}
    assert {"lstm.weight_hh_l0.u#momentum", "lstm.weight_hh_l0.v#momentum"} <= slots
    assert not any(name.startswith("lstm.weight_hh_l0#") for name in slots)


@pytest.mark.slow
@pytest.mark.runtime
def test_hidden_factors_larger_than_their_matrix_are_multiplied_out(tmp_path: Path) -> None:
    few, many = (exported(tmp_path / str(rank), "onnxruntime", rank) for rank in (3, 7))
    assert many.parity.max_grad_rel_err <= many.parity.tolerance
    # Five steps: two layers' inputs and hidden states, the classifier; then 7 x (32 + 8) is more than 32 x 8.
    assert few.cost.macs == 5 * 3 * (4 * 32 + 6 + 3 * 8) + 8 * 3
    assert many.cost.macs > 5 * (7 * (2 * 32 + 6 + 8) + 2 * 32 * 8) + 8 * 3


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["executorch", "onnxruntime_training"])
def test_step_of_factors_agrees_with_torch_on_every_runtime(runtime: str, tmp_path: Path) -> None:
    manifest = exported(tmp_path, runtime)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


@pytest.mark.slow
def test_recurrent_dropout_trains_uncut(tmp_path: Path) -> None:
    module = reader().float()
    module.lstm = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.5)
    manifest = export_artifact(module, step_of({}, SMALL, 3, 4), tmp_path / "artifact")
    assert [spec.name for spec in manifest.specs("draw")] == ["lstm#draw"]
