"""Factorized layers: two thin layers in place of a wide one, and the way between dense weights and factors.

Forms: ``spatial``, a 1xk convolution to r channels and a kx1 convolution back (FedHM, the unrolling of its published
counts); ``conv1x1``, a full convolution to r channels and a 1x1 convolution (PriSM, and conv1d); ``linear``.
``recurrent`` is one gate matrix of an LSTM (:mod:`coordinator.submodels.recurrent`).
In all of them the parameters are ``<layer>.v`` (first) and ``<layer>.u`` (second, with the bias), the rank is dim 1 of
u and dim 0 of v. Which layers are cut is decided in :mod:`coordinator.submodels.layout`; factors beside a dense
layer are in :mod:`coordinator.submodels.lora` and passed on here.
"""

# Dims: O outputs, I inputs, R rank, H and W kernel height and width.

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coordinator.submodels.record import Cut, Factor, Form
from coordinator.submodels.spectrum import Spectrum, one_blas_thread, truncated_svd
from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    from coordinator.submodels.values import Tensors

FORMS: dict[type[nn.Module], Form] = {nn.Conv2d: "spatial", nn.Conv1d: "conv1x1", nn.Linear: "linear"}
"""Layers that can be factorized and the form each takes. Subclasses may read ``weight`` directly and are left alone."""


class FactorizedConv2d(nn.Module):
    """A convolution as a 1xk convolution of stride (1, s) to r channels, then a kx1 convolution of stride (s, 1).

    No norm and no activation lie between. The intermediate map of a stride-2 layer is H x W/2.
    Source: FedHM, reference order of the unrolling.
    """

    def __init__(self, dense: nn.Conv2d, rank: int) -> None:
        super().__init__()
        height, width = dense.kernel_size
        self.stride, self.padding, self.dilation = dense.stride, dense.padding, dense.dilation
        self.u = nn.Parameter(_initial(dense.out_channels, rank, height, 1))
        self.v = nn.Parameter(_initial(rank, dense.in_channels, 1, width))
        self.bias = _copied(dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        (down, across), (rows, columns), (d_rows, d_columns) = self.stride, self.padding, self.dilation
        x = F.conv2d(x, self.v, None, (1, across), (0, columns), (1, d_columns))
        return F.conv2d(x, self.u, self.bias, (down, 1), (rows, 0), (d_rows, 1))

    def extra_repr(self) -> str:
        return f"rank={self.u.shape[1]}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}"


class BottleneckConv(nn.Module):
    """A 1d or 2d convolution as the same convolution to r channels, then one of kernel size 1. Source: PriSM.

    Attributes:
        zeros: channels of zeros behind the outputs.
    """

    zeros = 0

    def __init__(self, dense: nn.Conv1d | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation = dense.stride, dense.padding, dense.dilation
        self.u = nn.Parameter(_initial(dense.out_channels, rank, *[1] * len(dense.kernel_size)))
        self.v = nn.Parameter(_initial(rank, dense.in_channels, *dense.kernel_size))
        self.bias = _copied(dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        conv = F.conv1d if self.v.dim() == 3 else F.conv2d
        x = conv(conv(x, self.v, None, self.stride, self.padding, self.dilation), self.u, self.bias)
        return F.pad(x, [0, 0] * (self.v.dim() - 2) + [0, self.zeros]) if self.zeros else x

    def extra_repr(self) -> str:
        shown = f"rank={self.u.shape[1]}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}"
        return shown + (f", zeros={self.zeros}" if self.zeros else "")


class FactorizedLinear(nn.Module):
    """x -> (x V^T) U^T + bias, u [out, r], v [r, in]; then ``zeros`` further outputs, all 0."""

    zeros = 0

    def __init__(self, dense: nn.Linear, rank: int) -> None:
        super().__init__()
        self.u = nn.Parameter(_initial(dense.out_features, rank))
        self.v = nn.Parameter(_initial(rank, dense.in_features))
        self.bias = _copied(dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(F.linear(x, self.v), self.u, self.bias)
        return F.pad(x, [0, self.zeros]) if self.zeros else x

    def extra_repr(self) -> str:
        return f"rank={self.u.shape[1]}" + (f", zeros={self.zeros}" if self.zeros else "")


def factorized_layer(path: str, dense: nn.Module, factor: Factor, spread: int = 0) -> nn.Module:
    """The layer that replaces ``dense``; its factors hold arbitrary small values until weights are loaded.

    Args:
        spread: its outputs lie first among so many, the rest zeros; 0 for none.

    Raises:
        PlanError: a form the layer does not have, or one without ``spread``.
    """
    layer = _in_form(path, dense, factor)
    if spread:
        if not isinstance(layer, BottleneckConv | FactorizedLinear) or spread < len(layer.u):
            raise PlanError(
                f"layer '{path}': outputs of form {factor.form} cannot be spread to {spread}; conv1x1 and linear ones "
                "to their number or more"
            )
        layer.zeros = spread - len(layer.u)
    return layer


def _in_form(path: str, dense: nn.Module, factor: Factor) -> nn.Module:
    if factor.form == "spatial" and isinstance(dense, nn.Conv2d):
        return FactorizedConv2d(dense, factor.rank)
    if factor.form == "conv1x1" and isinstance(dense, nn.Conv1d | nn.Conv2d):
        return BottleneckConv(dense, factor.rank)
    if factor.form == "linear" and isinstance(dense, nn.Linear):
        return FactorizedLinear(dense, factor.rank)
    raise PlanError(f"layer '{path}': no {factor.form} factorization of a {type(dense).__name__}; change the cut")


def weight_name(path: str, form: Form) -> str:
    """Name of the dense tensor that a factor at ``path`` stands for: a gate matrix is named itself."""
    return path if form == "recurrent" else f"{path}.weight"


def unrolled(weight: np.ndarray, form: Form) -> np.ndarray:
    """The matrix whose spectrum is cut: (O,H) x (I,W) for ``spatial``, O x (I,H,W) otherwise."""
    if form == "spatial":
        out, inputs, height, width = weight.shape
        return weight.transpose(0, 2, 1, 3).reshape(out * height, inputs * width)
    return weight.reshape(len(weight), -1)


def factors_of(spectrum: Spectrum, shape: tuple[int, ...], factor: Factor) -> tuple[np.ndarray, np.ndarray]:
    """u and v, float32, of the components that ``factor`` names, for a dense weight of ``shape``."""
    chosen = list(factor.components)
    left = spectrum.left_NR[:, chosen].astype(np.float32)
    right = spectrum.right_RM[chosen].astype(np.float32)
    if factor.form == "spatial":
        out, inputs, height, width = shape
        u_ORH1 = np.ascontiguousarray(left.reshape(out, height, -1).transpose(0, 2, 1))[..., None]
        return u_ORH1, right.reshape(-1, inputs, 1, width)
    return left.reshape(*left.shape, *[1] * (len(shape) - 2)), right.reshape(-1, *shape[1:])


def recovered(u: np.ndarray, v: np.ndarray, form: Form) -> np.ndarray:
    """The dense weight u and v stand for, in their precision or better: the inverse of unrolling, times u v."""
    rank = len(v)
    if form == "spatial":
        (out, _, height, _), (_, inputs, _, width) = u.shape, v.shape
        product = u[..., 0].transpose(0, 2, 1).reshape(out * height, rank) @ v.reshape(rank, inputs * width)
        return np.ascontiguousarray(product.reshape(out, height, inputs, width).transpose(0, 2, 1, 3))
    return (u.reshape(len(u), rank) @ v.reshape(rank, -1)).reshape(len(u), *v.shape[1:])


class SpectrumCache:
    """Spectra of one set of dense tensors, each layer decomposed once for all levels.

    Every layer is decomposed at the same rank whoever asks first, so that a cut's bits do not depend on the order in
    which levels are cut.
    """

    def __init__(self, tensors: Tensors, ranks: Mapping[str, int]) -> None:
        """``ranks``: layer path -> the largest rank any level holds of it."""
        self.tensors = tensors
        self._ranks = ranks
        self._spectra: dict[tuple[str, Form], Spectrum] = {}

    def spectrum(self, path: str, form: Form, rank: int) -> Spectrum:
        """At least ``rank`` components of the layer's unrolled weight."""
        known = self._spectra.get((path, form))
        if known is None or len(known.values_R) < rank:
            rank = max(rank, self._ranks.get(path, 0))
            known = truncated_svd(unrolled(self.tensors[weight_name(path, form)], form), rank)
            self._spectra[path, form] = known
        return known


def factorize_tensors(tensors: Tensors, cut: Cut, *, spectra: SpectrumCache | None = None) -> dict[str, np.ndarray]:
    """Dense tensors -> the cut's: spectral initialisation, sqrt(Sigma) on both factors; other tensors are passed on.

    Source: FedHM; the product of the factors is the best approximation of the layer at the cut's rank.

    Raises:
        PlanError: the cut names a layer the tensors do not have, or more components than it has.
    """
    needed = {
        path: max(entry.factor.components) + 1
        for path, entry in cut.items()
        if entry.factor and entry.factor.form != "additive_lora"
    }
    spectra = spectra or SpectrumCache(tensors, needed)
    result = dict(tensors)
    for path in sorted(needed):
        factor = cut[path].factor
        assert factor is not None
        name = weight_name(path, factor.form)
        if name not in result:
            raise PlanError(f"the cut factorizes '{path}' but the model has no tensor '{name}'; cut this model anew")
        shape = result.pop(name).shape
        largest = min(unrolled(tensors[name], factor.form).shape)
        if needed[path] > largest:
            raise PlanError(f"layer '{path}': component {needed[path] - 1} wanted, it has {largest}; lower the rank")
        spectrum = spectra.spectrum(path, factor.form, needed[path])
        result[f"{path}.u"], result[f"{path}.v"] = factors_of(spectrum, shape, factor)
    return result


def recover_tensors(tensors: Tensors, cut: Cut) -> dict[str, np.ndarray]:
    """The cut's tensors -> dense ones: factor pairs are multiplied in float64, everything else is passed on.

    Layers of which neither factor is there (frozen, so not uploaded) are left out.

    Raises:
        PlanError: one factor without the other, or factors that do not share their rank.
    """
    result = dict(tensors)
    for path in sorted(cut):
        factor = cut[path].factor
        if factor is None or factor.form == "additive_lora":
            continue
        pair = [result.pop(f"{path}.{side}", None) for side in ("u", "v")]
        u, v = pair
        if u is None and v is None:
            continue
        if u is None or v is None or u.ndim < 2 or u.shape[1] != v.shape[0] or v.shape[0] != factor.rank:
            shapes = [None if side is None else tuple(side.shape) for side in pair]
            raise PlanError(f"layer '{path}': factors u {shapes[0]} and v {shapes[1]}, rank {factor.rank} expected")
        with (
            one_blas_thread(),
            np.errstate(invalid="ignore", over="ignore"),
        ):  # the aggregation refuses what is not finite
            dense = recovered(u.astype(np.float64), v.astype(np.float64), factor.form)
        result[weight_name(path, factor.form)] = dense
    return result


def _initial(*shape: int) -> Tensor:
    """Uniform values of variance 1 / fan-in that depend on the shape alone."""
    generator = torch.Generator().manual_seed(sum(shape))
    fan_in = max(1, int(np.prod(shape[1:])))
    return (torch.rand(*shape, generator=generator) * 2 - 1) * (3.0 / fan_in) ** 0.5


def _copied(bias: Any) -> nn.Parameter | None:
    return None if bias is None else nn.Parameter(bias.detach().clone())
