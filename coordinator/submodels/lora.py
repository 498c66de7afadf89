"""Additive low-rank adaptation: a frozen dense layer with two trained factors beside it, and the way to and from dense.

y = W x + u (v x): u [out, r] starts at zero and v [r, in] Gaussian, so the first step begins at the dense layer. W
keeps its name ``<layer>.weight``, the factors are ``<layer>.u`` and ``<layer>.v``; no factor alpha / r scales them.
Source: FedLoRA (FedHM, journal version), which sets alpha / r = 1.
"""

# Dims: O outputs, I inputs, R rank.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coordinator.submodels.frozen_base import frozen_but
from coordinator.submodels.record import Cut, Factor, LayerCut
from coordinator.submodels.spectrum import one_blas_thread
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.streams import stream_seed, uniform

if TYPE_CHECKING:
    from coordinator.submodels.spectrum import Spectrum
    from coordinator.submodels.values import Tensors

FORM: Final = "additive_lora"
SILENT = 1e-6
"""Components below this share of the largest are rounding of the float32 difference, not something learnt."""


class AdditiveLinear(nn.Module):
    """x -> x W^T + bias + (x v^T) u^T; weight and bias are frozen, u [out, r] and v [r, in] trained."""

    def __init__(self, dense: nn.Linear, rank: int) -> None:
        super().__init__()
        self.weight = _frozen(dense.weight)
        self.bias = None if dense.bias is None else _frozen(dense.bias)
        self.u = nn.Parameter(torch.zeros(dense.out_features, rank, device=dense.weight.device))
        drawn = gaussian_rows(0, rank, dense.in_features) if not dense.weight.is_meta else None
        v = torch.empty(rank, dense.in_features, device="meta") if drawn is None else torch.from_numpy(drawn)
        self.v = nn.Parameter(v.to(dense.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.v), self.u)

    def extra_repr(self) -> str:
        return f"rank={self.u.shape[1]}"


def _frozen(value: Tensor) -> Tensor:
    """A copy that is not trained; the value itself where it is no parameter, as of a base that copies share."""
    return nn.Parameter(value.detach().clone(), requires_grad=False) if isinstance(value, nn.Parameter) else value


def additive_layer(path: str, dense: nn.Module, factor: Factor) -> AdditiveLinear:
    """The layer that replaces ``dense`` and computes the same until its u is trained.

    Raises:
        PlanError: not a linear layer, or a rank its weight does not have.
    """
    if type(dense) is not nn.Linear:
        raise PlanError(f"layer '{path}': no {FORM} of a {type(dense).__name__}, only of a Linear; change the cut")
    largest = min(dense.weight.shape)
    if not 1 <= factor.rank <= largest:
        raise PlanError(f"layer '{path}': rank {factor.rank} asked for, its weight has {largest}; change the rank")
    return AdditiveLinear(dense, factor.rank)


def adapted_layers(module: nn.Module, head: str, patterns: Sequence[str] | None = None) -> tuple[str, ...]:
    """Paths of the linear layers that get factors, in module order.

    Args:
        head: path of the classifier, which is trained itself.
        patterns: shell-style name patterns; None takes the module's own attribute ``adapted_layers``, or every linear
            layer but the head.

    Raises:
        ConfigError: patterns that match no linear layer; lists what there is.
        PlanError: there is none.
    """
    linear = [path for path, layer in module.named_modules() if type(layer) is nn.Linear and path != head]
    wanted = patterns if patterns is not None else getattr(module, "adapted_layers", ("*",))
    chosen = tuple(path for path in linear if any(fnmatchcase(path, pattern) for pattern in wanted))
    if not chosen and patterns is not None:
        shown = ", ".join(linear[:12]) or "none"
        raise ConfigError(
            [f"$.method.layout: {list(patterns)} matches no linear layer but the head; there are: {shown}"]
        )
    if not chosen:
        raise PlanError(
            f"{type(module).__name__} has no linear layer but its head '{head}' to adapt; use fedhm or fedavg"
        )
    return chosen


def additive_cut(module: nn.Module, layers: Sequence[str], head: str, rank: int) -> dict[str, LayerCut]:
    """Factors of ``rank`` beside every layer named, the head trained as it is, everything else frozen."""
    cut = {path: LayerCut(factor=Factor(FORM, tuple(range(rank)))) for path in layers}
    return {**cut, **frozen_but(module, {*layers, head})}


def gaussian_rows(seed: int, rows: int, columns: int) -> np.ndarray:
    """Normal values of variance 1 / columns, float32 [rows, columns]; fewer rows are the first ones of more."""
    u = uniform(seed, 2 * rows * columns)
    # Box-Muller: 1 - u lies in (0, 1].
    values = np.sqrt(-2.0 * np.log(1.0 - u[0::2])) * np.cos(2.0 * np.pi * u[1::2])
    return (values / np.sqrt(columns)).reshape(rows, columns).astype(np.float32)


def additive_factors(
    spectrum: Spectrum | None, shape: tuple[int, ...], rank: int, *, path: str, seed: int, round_index: int
) -> tuple[np.ndarray, np.ndarray]:
    """u and v, float32, whose product is the best approximation at ``rank`` of what the server has learnt so far.

    Components that it has not (all of them in the first round) start with u zero and v Gaussian: were both zero,
    neither would ever get a gradient. Every device of a round draws the same rows, so that ranks are nested.

    Args:
        spectrum: of the learnt difference; None when it is zero.
    """
    u_OR = np.zeros((shape[0], rank), np.float32)
    v_RI = gaussian_rows(stream_seed(seed, f"lora {path}", round_index), rank, shape[1])
    if spectrum is not None:
        held = int((spectrum.values_R[:rank] > SILENT * spectrum.values_R[0]).sum())
        u_OR[:, :held] = spectrum.left_NR[:, :held]
        v_RI[:held] = spectrum.right_RM[:held]
    return u_OR, v_RI


def learnt_differences(tensors: Tensors, cut: Cut) -> dict[str, np.ndarray]:
    """What an update's factors add to each dense weight, float64, under the weight's name; other tensors passed on.

    Raises:
        PlanError: one factor without the other, or of another rank than the cut's.
    """
    result = dict(tensors)
    for path in sorted(cut):
        factor = cut[path].factor
        if factor is None or factor.form != FORM:
            continue
        pair = [result.pop(f"{path}.{side}", None) for side in ("u", "v")]
        u, v = pair
        if u is None and v is None:
            continue
        if u is None or v is None or u.ndim != 2 or v.ndim != 2 or not u.shape[1] == v.shape[0] == factor.rank:
            shapes = [None if side is None else tuple(side.shape) for side in pair]
            raise PlanError(f"layer '{path}': factors u {shapes[0]} and v {shapes[1]}, rank {factor.rank} expected")
        with one_blas_thread(), np.errstate(invalid="ignore", over="ignore"):
            result[f"{path}.weight"] = u.astype(np.float64) @ v.astype(np.float64)
    return result


def merged_tensors(tensors: Mapping[str, np.ndarray], cut: Cut) -> dict[str, np.ndarray]:
    """The cut's tensors -> dense ones in their precision: W + u v, computed in float64.

    Raises:
        PlanError: as :func:`learnt_differences`.
    """
    result = learnt_differences(tensors, cut)
    for path, entry in cut.items():
        name = f"{path}.weight"
        if entry.factor is not None and entry.factor.form == FORM and f"{path}.u" in tensors:
            result[name] = (tensors[name] + result[name]).astype(tensors[name].dtype)
    return result
