"""The traced step of a scheme: backward products that something trained needs, and no others."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from coordinator.contributions.scheme import Scheme, frozen_names, scheme_cut
from coordinator.submodels.build import apply_cut
from export.programs import capture_programs
from export.training_step import Optimizer, StepSpec
from tests.coordinator.contributions.test_schemes import LAYERS, NETWORK, SPEC

ATEN = torch.ops.aten


def traced(scheme: Scheme) -> list[fx.Node]:
    cut = scheme_cut(NETWORK, LAYERS, scheme)
    step = StepSpec(
        input=SPEC,
        classes=3,
        batch=4,
        frozen=frozen_names(NETWORK, cut),
        frozen_norm="static",
        optimizer=Optimizer(weight_decay=False),
    )
    return list(capture_programs(apply_cut(NETWORK, cut), step)["train"].graph.graph.nodes)


def of(nodes: list[fx.Node], operator: Any) -> list[fx.Node]:
    return [node for node in nodes if node.target is operator]


def test_backward_pass_ends_at_the_lowest_trained_parameter() -> None:
    nodes = traced(Scheme("3", {"3": (2, 3), "7": None}))
    products = of(nodes, ATEN.convolution_backward.default)
    # Neither the input's gradient of the lowest trained layer nor the rows that stay are computed.
    assert [node.args[-1] for node in products] == [[False, True, False]]
    assert products[0].args[0].meta["val"].shape[1] == 2
    assert len(of(nodes, ATEN.threshold_backward.default)) == 1


def test_biases_alone_need_no_product_of_a_convolution() -> None:
    nodes = traced(Scheme("3", {"7": None}))
    assert of(nodes, ATEN.convolution_backward.default) == []
    # What is left of the norm's backward pass is the sum that its shift gets.
    assert len(of(nodes, ATEN.threshold_backward.default)) == 1


def test_optimizer_holds_state_for_trained_rows_alone() -> None:
    nodes = traced(Scheme("3", {"3": (2, 3), "7": None}))
    places = {node.name: tuple(node.meta["val"].shape) for node in nodes if node.op == "placeholder"}
    momentum = [shape for shape in places.values() if shape == (2, 8, 3, 3)]
    assert len(momentum) == 2  # the rows and their momentum
    assert (16, 8, 3, 3) not in places.values()
