"""What a step of a scheme keeps and computes, by hand; the best scheme under a budget, beside all there are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.contributions.measure import Tuning, measured
from coordinator.contributions.operations import BATCH, forward_operations, step_work
from coordinator.contributions.record import Contributions, LayerGain, read_contributions
from coordinator.contributions.scheme import Layer, Scheme, frozen_names, ordered_layers, scheme_cut
from coordinator.contributions.search import Cost, best_scheme, full_cost, scheme_cost
from coordinator.contributions.statistics import gathered
from coordinator.models.catalog import build_model
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import LayerCut
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.manifest import InputSpec
from export.capture import Capture
from export.features.split import split
from export.programs import capture_programs
from export.training_step import StepSpec

SPEC = InputSpec(layout="NCHW", shape=(2, 4, 4), dtype="float32")


def network() -> nn.Sequential:
    """Two convolutions with norms, a linear head: values of 8 x 4 x 4 and 16 x 4 x 4."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 3),
    )


NETWORK = network()
OPERATIONS = forward_operations(NETWORK, SPEC)
LAYERS = ordered_layers(NETWORK, OPERATIONS)
SIZES = {name: p.numel() for name, p in NETWORK.named_parameters()}
FIRST, SECOND = 8 * 16 * 4 * BATCH, 16 * 16 * 4 * BATCH
"""Bytes of a value behind the first and the second convolution."""


def test_layers_come_in_the_order_of_execution() -> None:
    assert [layer.path for layer in LAYERS] == ["0", "1", "3", "4", "7"]
    assert [(layer.weight, layer.bias) for layer in LAYERS[:2]] == [("0.weight", ""), ("", "1.bias")]


def test_full_step_keeps_inputs_of_weights_and_norms_and_outputs_of_relus() -> None:
    work = step_work(OPERATIONS, SIZES)
    # Conv outputs for the norms, ReLU outputs, which the next products read too; the batch is held anyway.
    assert work.kept_bytes == 2 * FIRST + 2 * SECOND
    first, second, head = 16 * 8 * 18, 16 * 16 * 72, 256 * 3
    assert work.forward_macs == first + second + head
    assert work.input_macs == second + head
    assert work.macs == 3 * (first + second + head) - first


def test_biases_alone_keep_what_relus_read() -> None:
    work = step_work(OPERATIONS, {"4.bias", "7.bias"})
    assert work.kept_bytes == SECOND
    assert (work.input_macs, dict(work.weight_macs)) == (256 * 3, {})


def test_weight_of_one_layer_keeps_its_input_and_computes_its_share() -> None:
    work = step_work(OPERATIONS, {"3.weight", "7.weight"}, {"3.weight": 0.25})
    assert work.kept_bytes == FIRST + SECOND
    assert work.weight_macs == {"3.weight": 16 * 4 * 72, "7.weight": 256 * 3}
    assert step_work(OPERATIONS, {"7.weight"}).kept_bytes == SECOND


@pytest.mark.parametrize(
    ("trained", "left"),
    [
        (["4.weight"], ["7"]),  # the norm's input is kept, behind the second convolution
        (["3.weight"], ["3", "7"]),
        (["0.weight"], ["0", "3", "7"]),
        (["7.weight"], ["7"]),
    ],
)
def test_step_on_kept_features_runs_what_comes_after_them(trained: list[str], left: list[str]) -> None:
    macs = {"0": 16 * 8 * 18, "3": 16 * 16 * 72, "7": 256 * 3}
    work = step_work(OPERATIONS, trained, keeps_features=True)
    assert work.forward_macs == sum(macs[path] for path in left)
    assert replace(work, forward_macs=0) == replace(step_work(OPERATIONS, trained), forward_macs=0)


@pytest.mark.parametrize("first", ["layer2.0.conv1", "layer2.0.bn1", "layer2.0.conv2", "layer3.0.bn2", "fc"])
def test_kept_features_are_those_that_the_export_divides_at(first: str) -> None:
    module = build_model("resnet8", input_shape=(3, 8, 8), classes=4)
    operations = forward_operations(module, module.input_spec)  # type: ignore[arg-type]
    names = [name for operation in operations for name in operation.parameters.values()]
    trained = set(names[names.index(f"{first}.weight") :])
    frozen = tuple(name for name, _ in module.named_parameters() if name not in trained)
    spec = StepSpec(
        input=module.input_spec,  # type: ignore[arg-type]
        classes=4,
        batch=2,
        frozen=frozen,
        frozen_norm="static",
        cached_features="float32",
    )
    parts = split(capture_programs(module, spec)["train"])
    assert parts is not None
    whole = sum(operation.macs for operation in operations)
    left = step_work(operations, trained, keeps_features=True).forward_macs
    assert 0 < whole - left == _product_macs(parts[0])


def _product_macs(features: Capture) -> int:
    """Of one example; a program's batch norms and ReLUs are not products."""
    nodes = [n for n in features.graph.graph.nodes if n.target is torch.ops.aten.convolution.default]
    return sum(n.meta["val"][0].numel() * n.args[1].meta["val"][0].numel() for n in nodes)


def test_cut_of_a_scheme_freezes_all_else() -> None:
    scheme = Scheme("3", {"3": (0, 1, 2, 3), "7": None})
    cut = scheme_cut(NETWORK, LAYERS, scheme)
    assert cut == {
        "0": LayerCut(frozen=True),
        "1": LayerCut(frozen=True),
        "3": LayerCut(trained_rows=(0, 1, 2, 3)),
        "4.weight": LayerCut(frozen=True),
    }
    assert frozen_names(NETWORK, cut) == ("0.weight", "1.weight", "1.bias", "3.weight", "4.weight")
    built = dict(apply_cut(NETWORK, cut).named_parameters())
    assert {n for n, p in built.items() if p.requires_grad} == {"3.rows", "4.bias", "7.weight", "7.bias"}
    cost = scheme_cost(OPERATIONS, LAYERS, scheme, SIZES)
    assert cost.memory == FIRST + SECOND + 8 * (4 * 72 + 16 + 256 * 3 + 3)


def gains(layer: Layer, *, weight: float, biases: float) -> LayerGain:
    count = 8 if layer.has_rows and layer.channels % 8 == 0 else 1
    return LayerGain(tuple(weight * (i + 1) for i in range(count)), biases)


@pytest.mark.parametrize("share", [0.25, 0.4, 0.6, 0.9])
@pytest.mark.parametrize("compute", [0.3, 0.55, 0.8, 1.0])
@pytest.mark.parametrize("keeps_features", [False, True])
def test_best_scheme_is_the_best_of_all(share: float, compute: float, keeps_features: bool) -> None:
    by_path = {layer.path: layer for layer in LAYERS if layer.weight}
    contributions = Contributions(
        {"0": gains(by_path["0"], weight=0.2, biases=3.0), "3": gains(by_path["3"], weight=0.3, biases=1.0)}
    )
    full = full_cost(OPERATIONS, SIZES)
    limit = Cost(int(full.memory * share), int(full.macs * compute))
    options = {path: [(), *_choices(by_path[path])] for path in ("0", "3")}
    best = -1.0
    for first, low, high in itertools.product(("0", "3", "7"), options["0"], options["3"]):
        if (low != () and first != "0") or (high != () and first == "7"):
            continue
        rows = {path: rows for path, rows in (("0", low), ("3", high), ("7", None)) if rows != ()}
        if scheme_cost(OPERATIONS, LAYERS, Scheme(first, rows), SIZES, keeps_features=keeps_features).fits(limit):
            best = max(best, _gain(Scheme(first, rows), contributions, by_path))
    found = best_scheme(OPERATIONS, LAYERS, SIZES, contributions, limit, keeps_features=keeps_features)
    if best < 0:
        assert found is None
        return
    assert found is not None
    assert scheme_cost(OPERATIONS, LAYERS, found, SIZES, keeps_features=keeps_features).fits(limit)
    assert _gain(found, contributions, by_path) == pytest.approx(best)


def _choices(layer: Layer) -> list[tuple[int, ...] | None]:
    width = layer.channels // 8
    # Gains rise with the block, so the last ones are the best.
    return [tuple(range(layer.channels - n * width, layer.channels)) for n in (1, 2, 4)] + [None]


def _gain(scheme: Scheme, contributions: Contributions, layers: dict[str, Layer]) -> float:
    total = contributions.of(scheme.first).biases
    for path, rows in scheme.rows.items():
        blocks = contributions.of(path).blocks
        width = max(1, layers[path].channels // 8)
        chosen = range(len(blocks)) if rows is None else {row // width for row in rows}
        total += sum(blocks[block] for block in chosen)
    return total


@pytest.mark.parametrize("measure", ["gradient", "accuracy"])
def test_a_layer_of_zeros_contributes_nothing_and_a_file_gives_the_gains_back(measure: str, tmp_path: Path) -> None:
    module = network()
    with torch.no_grad():
        module[4].weight.zero_()  # what the norm's scale hides moves nothing
        module[4].bias.fill_(1.0)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((64, 2, 4, 4)).astype(np.float32)
    y = (x.mean((1, 2, 3)) > 0).astype(np.int64)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = measured(module, LAYERS, x, y, measure, Tuning(steps=2, batch=16))  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert found.layers.keys() == {"0", "3"}
    assert sum(found.layers["0"].blocks) == sum(found.layers["3"].blocks) == 0
    if measure == "gradient":
        assert found.layers["3"].biases == found.layers["0"].biases > 0
    path = tmp_path / "gains.json"
    path.write_bytes(msgspec.json.encode(found))
    assert read_contributions(str(path), LAYERS).of("3").biases == max(0.0, found.layers["3"].biases)


def test_gradient_gain_is_the_squared_norm_of_the_gradient() -> None:
    module = network()
    generator = np.random.default_rng(1)
    x, y = generator.standard_normal((32, 2, 4, 4)).astype(np.float32), generator.integers(0, 3, 32)
    found = measured(module, LAYERS, x, y, "gradient", Tuning(steps=0, batch=16))
    module.eval()
    nn.functional.cross_entropy(module(torch.from_numpy(x[:16])), torch.from_numpy(y[:16])).backward()
    expected = (module[3].weight.grad.double() ** 2).reshape(8, -1).sum(1)
    assert found.layers["3"].blocks == pytest.approx(expected.tolist(), rel=1e-5)


def test_gathered_statistics_are_those_of_the_examples() -> None:
    x = np.random.default_rng(2).standard_normal((128, 2, 4, 4)).astype(np.float32) * 3 + 1
    before = NETWORK[1].running_mean.clone()
    found = gathered(NETWORK, x)
    assert torch.equal(NETWORK[1].running_mean, before)
    out = NETWORK[0](torch.from_numpy(x)).detach()
    torch.testing.assert_close(found[1].running_mean, out.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].running_var, out.var((0, 2, 3)), rtol=0.1, atol=0.0)
    assert found[1].momentum == 0.1
    assert found.training == NETWORK.training
    assert torch.equal(found[3].weight, NETWORK[3].weight)


def test_files_and_tables_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"contributions: .*none.json cannot be read"):
        read_contributions(str(tmp_path / "none.json"), LAYERS)
    with pytest.raises(ConfigError, match=r"\['layer9'\] are no layers of this model; it has 0, 3, 7"):
        read_contributions({"layer9": 1.0}, LAYERS)
    (tmp_path / "other.json").write_bytes(
        b'{"measure":"gradient","model":"M","examples":4,"layers":{"3":{"blocks":[1.0]}}}'
    )
    with pytest.raises(ConfigError, match=r"\['3'\] have other channels"):
        read_contributions(str(tmp_path / "other.json"), LAYERS)


def test_a_model_with_one_layer_and_too_few_examples_are_refused() -> None:
    alone = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    with pytest.raises(PlanError, match="has 1 convolutions and linear layers"):
        ordered_layers(alone, forward_operations(alone, SPEC))
    with pytest.raises(PlanError, match="10 examples to measure contributions on"):
        measured(NETWORK, LAYERS, np.zeros((10, 2, 4, 4), np.float32), np.zeros(10, np.int64), "gradient", Tuning())
