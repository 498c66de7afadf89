"""Which masked layers a device holds sparse, how much room their artifacts have, and who can tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from coordinator.methods.fedavg import FULL
from coordinator.submodels.record import Factor, LayerCut
from coordinator.submodels.sparse_layers import has_sparse_kernels, room, with_sparse_layers
from coordinator.submodels.values import DeviceProgram, Submodel, Variant

SHAPES = {"conv.weight": (32, 16, 5, 5), "fc.weight": (100, 200), "small.weight": (10, 20)}
BELOW = {"linear": 0.3, "convolution": 0.2}


def submodel(densities: dict[str, float], **program: object) -> Submodel:
    generator = np.random.default_rng(0)
    masks = {f"{n}#mask": generator.random(shape) < densities.get(n, 0.1) for n, shape in SHAPES.items()}
    values = {n: np.zeros(shape, np.float32) for n, shape in SHAPES.items()}
    cut = {name.removesuffix(".weight"): LayerCut(mask=name + "#mask") for name in SHAPES}
    return Submodel(cut, FULL, values | masks, replace(DeviceProgram(masked=tuple(SHAPES)), **program))


def chosen(densities: dict[str, float], **program: object) -> list[str]:
    return [name for name, _ in with_sparse_layers(submodel(densities, **program), BELOW).program.sparse]


def test_layers_below_the_measured_density_are_sparse() -> None:
    assert chosen({}) == ["conv.weight", "fc.weight"]  # the small one is not worth it
    assert chosen({"conv.weight": 0.25}) == ["fc.weight"]
    assert chosen({"conv.weight": 0.25, "fc.weight": 0.35}) == []


def test_scored_layers_and_several_programs_stay_dense() -> None:
    assert chosen({}, accumulators=("fc.weight",)) == ["conv.weight"]
    assert chosen({}, variants=(Variant("half"),)) == []
    assert chosen({}, distillation=True) == []


def test_kind_that_was_not_measured_stays_dense() -> None:
    assert with_sparse_layers(submodel({}), {"linear": 0.3}).program.sparse[0][0] == "fc.weight"
    assert with_sparse_layers(submodel({}), {}).program.sparse == ()


@pytest.mark.parametrize(("kept", "size", "expected"), [(1000, 1000, 1000), (901, 1000, 1000), (900, 1000, 900)])
def test_room_shrinks_by_tenths(kept: int, size: int, expected: int) -> None:
    assert room(kept, size) == expected


def test_room_holds_what_is_kept_and_little_more() -> None:
    for kept in (1, 7, 500, 4_999, 123_456, 999_999):
        capacity = room(kept, 1_000_000)
        assert kept <= capacity <= kept / 0.9 + 10
    assert room(0, 1000) >= 1


def test_layer_that_a_cut_replaces_stays_dense() -> None:
    given = submodel({})
    factorized = {"fc": LayerCut(mask="fc.weight#mask", factor=Factor("additive_lora", (0, 1)))}
    assert with_sparse_layers(replace(given, cut=factorized), BELOW).program.sparse == ()


def test_layers_with_sparse_kernels() -> None:
    module = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(8, 8, 3, groups=8), nn.Linear(8, 4),
        nn.Conv2d(4, 8, 1, padding=1), nn.Conv1d(4, 8, 3),
    )  # fmt: skip
    able = [name for name, _ in module.named_parameters() if has_sparse_kernels(module, name)]
    assert able == ["0.weight", "3.weight"]
    assert not has_sparse_kernels(module, "9.weight")
