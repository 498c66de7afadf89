"""Layers trained in part: the whole layer's outputs and gradients, a weight gradient of the trained rows alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import LayerCut, cut_digest, cut_from_json, cut_to_json
from coordinator.submodels.trained_rows import PartlyTrained, runs_of
from edge.contracts.errors import PlanError

LAYERS = {
    "linear": (lambda: nn.Linear(5, 8), (3, 5)),
    "sequence": (lambda: nn.Linear(5, 8), (3, 2, 5)),
    "image": (lambda: nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 6, 6)),
    "no bias": (lambda: nn.Conv2d(3, 8, 3, padding=1, bias=False), (2, 3, 4, 4)),
    "signal": (lambda: nn.Conv1d(3, 8, 3, dilation=2), (2, 3, 9)),
}


@pytest.mark.parametrize("rows", [(0, 1), (2, 3, 4), (0, 3, 7)])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_those_of_the_whole_layer(name: str, rows: tuple[int, ...]) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    dense = make().double()
    partly = apply_cut(nn.Sequential(dense), {"0": LayerCut(trained_rows=rows)})[0]
    assert isinstance(partly, PartlyTrained)
    x, weights = torch.randn(shape, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    gradients = []
    for layer in (dense, partly):
        given = x.clone().requires_grad_(True)
        y: Tensor = layer(given)
        (y * y * weights).sum().backward()
        gradients.append((y.detach(), given.grad))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert gradients[1][1] is not None
    torch.testing.assert_close(gradients[0][1], gradients[1][1], rtol=1e-12, atol=1e-12)
    assert dense.weight.grad is not None
    torch.testing.assert_close(dense.weight.grad[list(rows)], partly.rows.grad, rtol=1e-12, atol=1e-12)
    assert partly.weight.grad is None
    if dense.bias is not None:
        torch.testing.assert_close(dense.bias.grad, partly.bias.grad, rtol=1e-12, atol=1e-12)


def test_runs_are_consecutive_channels() -> None:
    assert runs_of((0, 1, 4), 6) == ((0, 2, True), (2, 4, False), (4, 5, True), (5, 6, False))


def test_traced_backward_pass_has_no_product_of_frozen_rows() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    layer = PartlyTrained("layer", nn.Conv2d(3, 8, 3, bias=False), (2, 3))

    def step(x: Tensor, rows: Tensor) -> Tensor:
        given = rows.detach().requires_grad_(True)
        y = torch.func.functional_call(layer, {"rows": given}, (x,))
        return torch.autograd.grad(y.sum(), [given])[0]

    graph = make_fx(step)(torch.randn(2, 3, 6, 6), torch.randn(2, 3, 3, 3))
    backward = [n for n in graph.graph.nodes if n.target is torch.ops.aten.convolution_backward.default]
    assert [tuple(node.args[0].meta["tensor_meta"].shape) for node in backward] == [(2, 2, 4, 4)]
    assert [node.args[-1] for node in backward] == [[False, True, False]]


def test_rows_are_part_of_a_cut_s_identity() -> None:
    cut = {"0": LayerCut(trained_rows=(0, 1, 2, 6))}
    assert cut_to_json(cut) == {"0": {"trained_rows": "0-2,6"}}
    assert cut_from_json(cut_to_json(cut)) == cut
    assert cut_digest(cut) != cut_digest({"0": LayerCut(trained_rows=(0, 1, 2, 5))})


@pytest.mark.parametrize(
    ("layer", "rows", "message"),
    [
        (nn.Conv2d(4, 4, 3, groups=4), (0,), "rows of a Conv2d are not trained apart"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (0,), "zeros around it"),
        (nn.LayerNorm(4), (0,), "rows of a LayerNorm"),
        (nn.Linear(4, 4), (3, 1), r"rows \[3, 1\] of 4"),
        (nn.Linear(4, 4), (4,), r"rows \[4\] of 4"),
        (nn.Linear(4, 4), (0, 1, 2, 3), "some of them expected"),
    ],
)
def test_layers_and_rows_that_cannot_be_are_refused(layer: nn.Module, rows: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError, match=f"layer 'conv'.*{message}"):
        PartlyTrained("conv", layer, rows)
