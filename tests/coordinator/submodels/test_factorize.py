"""Factorized layers and the way to factors and back. Source of the invariants: FedHM's algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.factorize import (
    SpectrumCache,
    factorize_tensors,
    factors_of,
    recover_tensors,
    recovered,
    unrolled,
)
from coordinator.submodels.record import Factor, Form, LayerCut
from coordinator.submodels.spectrum import truncated_svd
from edge.contracts.errors import PlanError
from export.step_functions import frobenius_gradients


def first(form: Form, rank: int) -> dict[str, LayerCut]:
    return {"0": LayerCut(factor=Factor(form, tuple(range(rank))))}


def double_factors(module: nn.Module, form: Form, rank: int, weight: torch.Tensor) -> nn.Module:
    """The cut module in float64 with unrounded factors of ``weight``."""
    found = truncated_svd(unrolled(weight.numpy(), form), rank)
    built = apply_cut(module, first(form, rank)).double()
    layer = built.get_submodule("0")
    u_shape, v_shape = layer.u.shape, layer.v.shape
    if form == "spatial":
        left = found.left_NR.reshape(u_shape[0], u_shape[2], rank).transpose(0, 2, 1)
    else:
        left = found.left_NR
    with torch.no_grad():
        layer.u.copy_(torch.from_numpy(np.ascontiguousarray(left)).reshape(u_shape))
        layer.v.copy_(torch.from_numpy(found.right_RM.copy()).reshape(v_shape))
    return built


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("swap", [False, True], ids=["reference order", "paper order"])
def test_full_rank_spatial_factors_are_the_convolution(stride: int, swap: bool) -> None:
    # The paper's unrolling is the reference one of the transposed image.
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(6, 10, 3, stride, 1)).double()
    x = torch.randn(2, 6, 8, 8, dtype=torch.float64)
    weight = dense[0].weight.detach()
    expected = dense(x)
    if swap:
        weight, x = weight.transpose(2, 3).contiguous(), x.transpose(2, 3)
    got = double_factors(dense, "spatial", 18, weight)(x)
    got = got.transpose(2, 3) if swap else got
    assert (got - expected).abs().max() < 1e-13


def test_the_two_unrollings_have_different_spectra() -> None:
    weight = np.random.default_rng(0).normal(size=(6, 4, 3, 3))
    reference = np.linalg.svd(unrolled(weight, "spatial"), compute_uv=False)
    paper = np.linalg.svd(unrolled(weight.transpose(0, 1, 3, 2), "spatial"), compute_uv=False)
    assert np.isclose((reference**2).sum(), (paper**2).sum())
    assert np.abs(reference - paper).max() > 0.1


@pytest.mark.parametrize(
    ("layer", "form", "shape", "rank"),
    [
        (nn.Conv2d(4, 6, (3, 5), (2, 1), (1, 2)), "spatial", (4, 9, 8), 18),
        (nn.Conv2d(4, 6, 3, 2, 2, dilation=2), "spatial", (4, 9, 9), 12),
        (nn.Conv2d(4, 6, 3, 2, 1), "conv1x1", (4, 8, 8), 6),
        (nn.Conv1d(4, 6, 5, 2, 2, bias=False), "conv1x1", (4, 11), 6),
        (nn.Linear(7, 5), "linear", (7,), 5),
        (nn.Linear(5, 7, bias=False), "linear", (3, 5), 5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_full_rank_factors_are_the_layer(layer: nn.Module, form: Form, shape: tuple[int, ...], rank: int) -> None:
    torch.manual_seed(1)
    dense = nn.Sequential(layer).double()
    x = torch.randn(2, *shape, dtype=torch.float64)
    got = double_factors(dense, form, rank, dense[0].weight.detach())(x)
    assert (got - dense(x)).abs().max() < 1e-12


@pytest.mark.parametrize("form", ["spatial", "conv1x1"])
def test_full_rank_cut_and_recover_is_the_identity(form: Form) -> None:
    weight = np.random.default_rng(0).normal(size=(8, 6, 3, 3))
    matrix = unrolled(weight, form)
    found = truncated_svd(matrix, min(matrix.shape))
    left, right = found.left_NR, found.right_RM
    if form == "spatial":
        u, v = left.reshape(8, 3, -1).transpose(0, 2, 1)[..., None], right.reshape(-1, 6, 1, 3)
    else:
        u, v = left.reshape(8, -1, 1, 1), right.reshape(-1, 6, 3, 3)
    assert np.abs(recovered(u, v, form) - weight).max() < 1e-13


def test_factors_are_balanced_and_best() -> None:
    weight = np.random.default_rng(3).normal(size=(12, 8, 3, 3)).astype(np.float32)
    matrix = unrolled(weight, "spatial")
    u, v = factors_of(truncated_svd(matrix, 5), weight.shape, Factor("spatial", tuple(range(5))))
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    assert u.shape == (12, 5, 3, 1)
    assert v.shape == (5, 8, 1, 3)
    assert np.isclose((u.astype(float) ** 2).sum(), values[:5].sum(), rtol=1e-6)
    assert np.isclose((v.astype(float) ** 2).sum(), values[:5].sum(), rtol=1e-6)
    best = (left[:, :5] * values[:5]) @ right[:5]
    got = unrolled(recovered(u.astype(float), v.astype(float), "spatial"), "spatial")
    assert np.abs(got - best).max() < 1e-6


@pytest.mark.parametrize("form", ["spatial", "linear"])
def test_frobenius_gradients_are_those_of_the_recovered_weights_norm(form: Form) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((6, 3, 3, 1), (3, 4, 1, 3)) if form == "spatial" else ((6, 3), (3, 4))
    u, v = (torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True) for shape in shapes)
    equation = "nrkx,rmyl->nmkl" if form == "spatial" else "nr,rm->nm"
    dense = torch.einsum(equation, u, v)
    assert np.allclose(dense.detach().numpy(), recovered(u.detach().numpy(), v.detach().numpy(), form), atol=1e-12)
    (0.5 * 0.3 * dense.square().sum()).backward()
    gradient_u, gradient_v = frobenius_gradients(u.detach(), v.detach(), torch.tensor(0.3, dtype=torch.float64))
    assert torch.allclose(u.grad, gradient_u, atol=1e-12)  # type: ignore[arg-type]
    assert torch.allclose(v.grad, gradient_v, atol=1e-12)  # type: ignore[arg-type]


def test_cut_module_computes_with_the_recovered_weights() -> None:
    module = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1))
    cut = first("spatial", 4)
    tensors = factorize_tensors(module_tensors(module), cut)
    low = apply_cut(module, cut, tensors)
    assert sorted(tensors) == ["0.bias", "0.u", "0.v"]
    dense = recover_tensors(tensors, cut)
    assert sorted(dense) == ["0.bias", "0.weight"]
    again = apply_cut(module, {}, {name: value.astype(np.float32) for name, value in dense.items()})
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(low(x), again(x), atol=1e-5)


def test_components_can_be_any_of_the_spectrum() -> None:
    module = nn.Sequential(nn.Linear(6, 6))
    tensors = module_tensors(module)
    parts = [
        recover_tensors(factorize_tensors(tensors, c), c)["0.weight"]
        for c in ({"0": LayerCut(factor=Factor("linear", chosen))} for chosen in ((0, 3), (1, 2, 4, 5)))
    ]
    assert np.abs(parts[0] + parts[1] - tensors["0.weight"]).max() < 1e-6


def test_a_layers_bits_do_not_depend_on_which_level_was_cut_first() -> None:
    tensors = module_tensors(nn.Sequential(nn.Linear(40, 40)))
    results = []
    for order in ((2, 20), (20, 2)):
        spectra = SpectrumCache(tensors, {"0": 20})
        results.append({rank: factorize_tensors(tensors, first("linear", rank), spectra=spectra) for rank in order})
    for rank in (2, 20):
        assert all(results[0][rank][name].tobytes() == results[1][rank][name].tobytes() for name in ("0.u", "0.v"))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"0.u": np.zeros((4, 2))}, ["'0'", "v None"]),
        ({"0.u": np.zeros((4, 3)), "0.v": np.zeros((3, 4))}, ["(4, 3)", "rank 2"]),
        ({"0.u": np.zeros((4, 2)), "0.v": np.zeros((3, 4))}, ["(4, 2)", "(3, 4)"]),
    ],
)
def test_factors_that_do_not_fit_are_refused(tensors: dict[str, np.ndarray], words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        recover_tensors(tensors, first("linear", 2))
    assert all(word in str(caught.value) for word in words)


def test_frozen_factors_that_were_not_uploaded_are_left_out() -> None:
    assert recover_tensors({"0.bias": np.zeros(3)}, first("linear", 2)).keys() == {"0.bias"}


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (first("linear", 7), ["component 6", "it has 5"]),
        ({"9": LayerCut(factor=Factor("linear", (0,)))}, ["'9.weight'"]),
    ],
)
def test_cut_the_tensors_do_not_have_is_refused(cut: dict[str, LayerCut], words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        factorize_tensors(module_tensors(nn.Sequential(nn.Linear(8, 5))), cut)
    assert all(word in str(caught.value) for word in words)
