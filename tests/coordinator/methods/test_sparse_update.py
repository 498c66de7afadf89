"""Sparse updates: what levels choose, what devices hold and send, entry-wise means, where the rest keeps its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.contributions.operations import forward_operations
from coordinator.contributions.scheme import Scheme, ordered_layers
from coordinator.contributions.search import scheme_cost
from coordinator.methods import Submodel, Update, build_method
from coordinator.methods.sparse_update import SparseUpdate
from coordinator.models.catalog import build_model
from coordinator.rounds.batch_norm_statistics import fixed_norms, state_with_statistics
from coordinator.submodels.build import apply_cut
from coordinator.submodels.costs import cut_costs
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from export.formats.onnx_step.format import OnnxStep
from export.training_step import StepSpec

GAINS = {"layer2.0.conv2": 1.0, "layer3.0.conv1": 2.0, "layer3.0.conv2": 3.0}
SHAPE = (3, 8, 8)


def network() -> nn.Module:
    return build_model("resnet8", input_shape=SHAPE, classes=4, seed=3)


MODULE = network()


def method(**options: Any) -> SparseUpdate:
    built = build_method("sparse_update", MODULE, {"contributions": GAINS, "levels": [1, 0.5, 0.3], **options})
    assert isinstance(built, SparseUpdate)
    return built


METHOD = method()


def submodel(number: int, method: SparseUpdate = METHOD) -> Submodel:
    level = method.levels()[number]
    return method.cut(method.init(), level, round_index=0, device="d", seed=1)


def trained(given: Submodel, device: str, change: float, examples: int = 4) -> Update:
    names = {n for n, _ in apply_cut(MODULE, given.cut).named_parameters()} - {*given.program.frozen}
    tensors = {n: given.tensors[n] + np.float32(change) for n in names}
    return Update(device, given.level, given.cut, tensors, examples)


def test_smaller_levels_train_less_and_send_less() -> None:
    assert [level.name for level in METHOD.levels()] == ["full", "memory 0.5", "memory 0.3"]
    costs = [cut_costs(MODULE, submodel(i).cut, MODULE.input_spec) for i in range(3)]  # type: ignore[arg-type]
    assert costs[0].bytes_up > costs[1].bytes_up > costs[2].bytes_up
    assert costs[0].bytes_down == costs[1].bytes_down == costs[2].bytes_down
    assert submodel(0).cut == {}
    assert submodel(0).program.frozen == ()


def test_what_contributes_most_is_trained_with_the_head() -> None:
    scheme = METHOD.scheme(METHOD.levels()[2])
    assert scheme is not None
    assert {*scheme.rows} <= {*GAINS, "fc"}
    assert "layer3.0.conv2" in scheme.rows
    assert scheme.rows["fc"] is None


def test_cut_module_computes_what_the_whole_one_does() -> None:
    given = submodel(2)
    x = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(1))
    cut = apply_cut(MODULE, given.cut, given.tensors)
    assert any(name.endswith(".rows") for name, _ in cut.named_parameters())
    with torch.no_grad():
        assert torch.equal(network().eval()(x), cut.eval()(x))


def test_frozen_norms_of_partial_levels_use_their_statistics() -> None:
    assert [submodel(i).program.frozen_norm for i in range(3)] == ["", "static", "static"]


def test_statistics_below_trained_layers_stay_and_those_of_trained_norms_are_gathered() -> None:
    # Measured: a residual network whose norms were static fell from 0.63 to 0.52 with gathered ones.
    state = METHOD.init()
    names = [name for name in state.tensors if name.endswith("running_var")]
    sent = {name: state.tensors[name] + 3 for name in names}
    whole = submodel(0)
    new = state_with_statistics(METHOD, state, [Update("a", whole.level, whole.cut, sent, 4)])
    moved = {name for name in names if not np.array_equal(new.tensors[name], state.tensors[name])}
    fixed = {name.rpartition(".")[0] for name in submodel(2).program.frozen}
    assert moved == {name for name in names if name.rpartition(".")[0] not in fixed}
    assert 0 < len(moved) < len(names)
    assert fixed_norms(method(levels=[1])) == set()
    static = fixed_norms(method(norms="static", levels=[0.3]))
    assert {name.rpartition(".")[0] for name in names} <= static


def test_entries_are_means_over_those_who_trained_them_and_others_keep_their_bits() -> None:
    state = METHOD.init()
    small, whole = submodel(2), submodel(0)
    new = METHOD.aggregate(state, [trained(small, "a", 1.0, 3), trained(whole, "b", 2.0, 1)])
    scheme = METHOD.scheme(small.level)
    assert scheme is not None
    (path, rows) = next((p, r) for p, r in scheme.rows.items() if r is not None)
    before, after = state.tensors[f"{path}.weight"], new.tensors[f"{path}.weight"]
    chosen = np.isin(np.arange(len(before)), rows)
    np.testing.assert_allclose(after[chosen], before[chosen] + 1.25, rtol=1e-6)
    np.testing.assert_allclose(after[~chosen], before[~chosen] + 2.0, rtol=1e-6)
    alone = METHOD.aggregate(state, [trained(small, "a", 1.0)])
    frozen = {*small.program.frozen} - {f"{path}.weight"}
    assert all(np.array_equal(alone.tensors[n], state.tensors[n]) for n in frozen)
    assert np.array_equal(alone.tensors[f"{path}.weight"][~chosen], before[~chosen])
    np.testing.assert_allclose(alone.tensors["fc.bias"], state.tensors["fc.bias"] + 1, rtol=1e-6)


def test_statistics_that_a_partial_level_did_not_move_do_not_count() -> None:
    state, small = METHOD.init(), submodel(2)
    update = trained(small, "a", 1.0)
    sent = {**update.tensors, "bn1.running_mean": state.tensors["bn1.running_mean"] + 5}
    new = METHOD.aggregate(state, [Update("a", small.level, small.cut, sent, 4)])
    assert np.array_equal(new.tensors["bn1.running_mean"], state.tensors["bn1.running_mean"])


def test_trained_norms_are_those_from_the_first_trained_layer_on() -> None:
    partial = method(levels=[0.3])
    given = submodel(0, partial)
    scheme = partial.scheme(given.level)
    assert scheme is not None
    order = [layer.path for layer in ordered_layers(MODULE, forward_operations(MODULE, MODULE.input_spec))]  # type: ignore[arg-type]
    above = {*order[order.index(scheme.first) :]}
    norms = {path for path, part in MODULE.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert norms & above
    assert norms - above
    for path in norms:
        assert ({f"{path}.weight", f"{path}.bias"} <= {*given.program.frozen}) == (path not in above)


def test_static_norms_keep_scales_and_statistics() -> None:
    static = method(norms="static", levels=[0.3])
    state, given = static.init(), submodel(0, static)
    norms = [path for path, part in MODULE.named_modules() if isinstance(part, nn.BatchNorm2d)]
    assert {f"{path}.weight" for path in norms} <= {*given.program.frozen}
    update = trained(given, "a", 1.0)
    sent = {**update.tensors, **{f"{path}.running_var": state.tensors[f"{path}.running_var"] + 5 for path in norms}}
    new = static.aggregate(state, [Update("a", given.level, given.cut, sent, 4)])
    for path in norms:
        np.testing.assert_array_equal(new.tensors[f"{path}.running_var"], state.tensors[f"{path}.running_var"])


def test_statistics_of_trained_norms_are_means_and_others_keep_their_bits() -> None:
    partial = method(levels=[0.3])
    state, given = partial.init(), submodel(0, partial)
    frozen = {name.rpartition(".")[0] for name in given.program.frozen}
    statistics = [name for name, _ in MODULE.named_buffers() if name.endswith(("running_mean", "running_var"))]
    moved = {name for name in statistics if name.rpartition(".")[0] not in frozen}
    assert 0 < len(moved) < len(statistics)

    def update(device: str, change: float) -> Update:
        sent = trained(given, device, change)
        norms = {name: state.tensors[name] + np.float32(change) for name in statistics}
        return Update(device, sent.level, sent.cut, {**sent.tensors, **norms}, 4)

    new = partial.aggregate(state, [update("a", 1.0), update("b", 2.0)])
    for name in statistics:
        wanted = state.tensors[name] + np.float32(1.5 * (name in moved))
        np.testing.assert_allclose(new.tensors[name], wanted, rtol=1e-6)


def test_trained_norms_count_in_the_budget() -> None:
    operations = forward_operations(MODULE, MODULE.input_spec)  # type: ignore[arg-type]
    layers = ordered_layers(MODULE, operations)
    sizes = {name: p.numel() for name, p in MODULE.named_parameters()}
    rows = {"fc": None}
    static, norms = (scheme_cost(operations, layers, Scheme("layer3.0.conv1", rows, n), sizes) for n in (False, True))
    # Inputs of three norms of 64 channels, 2 x 2, batch 32, and gradients and momentum of their scales.
    assert norms.memory - static.memory == 3 * (32 * 64 * 4 * 4 + 64 * 8)
    assert norms.macs == static.macs


@pytest.mark.slow
def test_step_with_trained_norms_passes_the_gate() -> None:
    partial = method(levels=[0.3])
    given = submodel(0, partial)
    module = apply_cut(MODULE, given.cut, given.tensors)
    step = StepSpec(
        input=MODULE.input_spec,  # type: ignore[arg-type]
        classes=4,
        batch=4,
        frozen=given.program.frozen,
        frozen_norm="static",
    )
    written = OnnxStep().write(module, step)
    OnnxStep().check(module, step, written.files, written.programs, written.tensors)


def test_kept_features_leave_room_for_a_longer_backward_pass() -> None:
    first = {kept: method(levels=[0.5], compute=0.4, features=kept) for kept in ("computed", "kept")}
    depths = [[*GAINS].index(built.scheme(built.levels()[0]).first) for built in first.values()]  # type: ignore[union-attr]
    assert depths == [2, 1]
    with pytest.raises(ConfigError, match=r"\$\.method\.features: 'cached'"):
        method(features="cached")


def test_frozen_tensors_are_refused_with_the_device_s_name() -> None:
    small = submodel(2)
    update = trained(small, "a", 1.0)
    sent = {**update.tensors, "conv1.weight": small.tensors["conv1.weight"]}
    with pytest.raises(UpdateRejected, match=r"device b, round 0: sent \['conv1.weight'\], which its cut freezes"):
        METHOD.aggregate(METHOD.init(), [Update("b", small.level, small.cut, sent, 4)])


def test_compute_bounds_the_multiply_accumulates() -> None:
    bounded = method(levels=[0.9], compute=0.45)
    scheme, free = bounded.scheme(bounded.levels()[0]), METHOD.scheme(METHOD.levels()[1])
    assert scheme is not None
    assert free is not None
    assert scheme.first.startswith("layer3")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"contributions": None}, ConfigError, "some text, or a table"),
        ({"contributions": {"conv9": 1.0}}, ConfigError, r"\['conv9'\] are no layers"),
        ({"contributions": {"fc": -1.0}}, ConfigError, "numbers from 0"),
        ({"levels": [2]}, ConfigError, "ratios above 0 up to 1"),
        ({"compute": 1.5}, ConfigError, "compute: 1.5 given"),
        ({"norms": "batch"}, ConfigError, "norms"),
        ({"levels": [0.001]}, PlanError, "training the last layer alone takes more than"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        method(**options)


def test_contributions_are_needed_below_the_whole_model() -> None:
    with pytest.raises(ConfigError, match=r"apportion contributions RUN\.toml --out FILE"):
        build_method("sparse_update", MODULE, {"levels": [0.5]})
    assert len(build_method("sparse_update", MODULE, {"levels": [1]}).levels()) == 1
