"""Training programs of a part of a module: leading slices of its tensors, or one of its submodules alone.

A variant's step is the ordinary step of the narrower module. Around it every tensor is narrowed on the way in and put
back into the whole one on the way out, so that entries outside the variant keep their bits.
Source: FjORD (nested widths drawn for every mini-batch), Split-Mix (one of several small networks at a time).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from edge.contracts.errors import ExportRefused
from edge.contracts.tensors import TensorSpec
from export.training_step import StepSpec, Variant


class Only(nn.Module):
    """One submodule of a module, under its own path, so that its tensors keep their names."""

    def __init__(self, module: nn.Module, path: str) -> None:
        super().__init__()
        self._path = path
        at: nn.Module = self
        *parents, last = path.split(".")
        for name in parents:
            at.add_module(name, nn.Module())
            at = at.get_submodule(name)
        at.add_module(last, module.get_submodule(path))

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self._path)(x)


def variant_module(module: nn.Module, variant: Variant) -> nn.Module:
    """A copy of ``module`` in the variant's shapes, tensors under the same names.

    Raises:
        ExportRefused: a layer that cannot be narrowed, by name.
        ValueError: a submodule or tensor the module does not have, or sizes beyond the tensor's.
    """
    known = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, sizes in variant.sizes:
        if name not in known:
            raise ValueError(f"variant '{variant.name}' narrows '{name}', which {type(module).__name__} does not have")
        whole = tuple(known[name].shape)
        if len(sizes) != len(whole) or any(not 0 < part <= size for part, size in zip(sizes, whole, strict=True)):
            raise ValueError(f"variant '{variant.name}' takes {sizes} of '{name}', which is {whole}")
    copied = copy.deepcopy(module)
    if variant.submodule:
        try:
            copied = Only(copied, variant.submodule)
        except AttributeError as error:
            raise ValueError(f"variant '{variant.name}' runs '{variant.submodule}', which is not there") from error
    wanted = dict(variant.sizes)
    for path, part in copied.named_modules():
        prefix = f"{path}." if path else ""
        taken = False
        for name, parameter in list(part.named_parameters(recurse=False)):
            if prefix + name in wanted:
                kept = leading(parameter.detach(), wanted[prefix + name]).clone()
                setattr(part, name, nn.Parameter(kept, requires_grad=parameter.requires_grad))
                taken = True
        for name, buffer in list(part.named_buffers(recurse=False)):
            if prefix + name in wanted:
                setattr(part, name, leading(buffer, wanted[prefix + name]).clone())
                taken = True
        if taken:
            _fit(path, part)
    return copied


def variant_spec(spec: StepSpec, module: nn.Module) -> StepSpec:
    """``spec`` without its variants and without the names that ``module``, one of them, does not have."""
    names = {name for name, _ in module.named_parameters()}
    return msgspec.structs.replace(
        spec,
        variants=(),
        frozen=tuple(n for n in spec.frozen if n in names),
        squared_gradient=tuple(n for n in spec.squared_gradient if n in names),
        masked=tuple(n for n in spec.masked if n in names),
        sparse=tuple(w for w in spec.sparse if w.name in names),
        frobenius=tuple(p for p in spec.frobenius if p.u in names and p.v in names),
    )


def draw_suffix(variant: Variant) -> str:
    """What the names of the variant's draws end in: it draws in other shapes, and at other places, than the whole."""
    return f"@{variant.name}" if variant.name else ""


def variant_sizes(variant: Variant, name: str) -> tuple[int, ...] | None:
    """Leading sizes of tensor ``name`` (a parameter, or what belongs to one: ``weight#momentum``), None for whole."""
    return dict(variant.sizes).get(name.partition("#")[0])


def narrowed_specs(tensors: list[TensorSpec], variant: Variant) -> list[TensorSpec]:
    """Specs in the variant's shapes."""
    return [
        msgspec.structs.replace(spec, shape=sizes) if (sizes := variant_sizes(variant, spec.name)) else spec
        for spec in tensors
    ]


def leading(value: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The leading ``sizes`` of ``value``, a view."""
    for dim, size in enumerate(sizes):
        if size < value.shape[dim]:
            value = value.narrow(dim, 0, size)
    return value


def widened(whole: Tensor, part: Tensor) -> Tensor:
    """``whole`` with its leading entries replaced by ``part``: a new tensor, put together from slices.

    Formats know concatenation; a write into a slice would be one more operation to translate.
    """
    result = part
    for dim in reversed(range(part.dim())):
        size = part.shape[dim]
        if size < whole.shape[dim]:
            beside = leading(whole, tuple(part.shape[:dim]))
            result = torch.cat([result, beside.narrow(dim, size, whole.shape[dim] - size)], dim)
    return result


def narrow_values(values: Mapping[str, Tensor], variant: Variant) -> dict[str, Tensor]:
    """Every tensor in the variant's shape; narrowed ones are copies, so that nothing writes through them."""
    narrowed = {}
    for name, value in values.items():
        sizes = variant_sizes(variant, name)
        narrowed[name] = value if sizes is None else leading(value, sizes).clone()
    return narrowed


def put_back(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """A copy of ``whole`` with its leading entries replaced by ``part``."""
    result = np.array(whole)
    result[tuple(slice(0, size) for size in part.shape)] = part
    return result


def _fit(path: str, part: nn.Module) -> None:
    """Make the attributes of a narrowed layer agree with its tensors.

    Raises:
        ExportRefused: a layer for which that is not known.
    """
    if isinstance(part, _ConvNd) and not isinstance(part, _ConvTransposeNd):
        outputs, inputs = part.weight.shape[:2]
        if part.groups > 1:
            if inputs != 1 or part.in_channels != part.out_channels or part.groups != part.in_channels:
                raise ExportRefused(
                    path, "a grouped convolution cannot be narrowed", instead="an ordinary or a depthwise convolution"
                )
            part.groups = inputs = outputs
        part.in_channels, part.out_channels = inputs, outputs
    elif isinstance(part, nn.Linear):
        part.out_features, part.in_features = part.weight.shape
    elif isinstance(part, _BatchNorm):
        part.num_features = part.weight.shape[0]
    elif isinstance(part, nn.LayerNorm):
        part.normalized_shape = tuple(part.weight.shape)
    elif not isinstance(part, nn.Embedding):
        raise ExportRefused(
            path, f"{type(part).__name__} cannot be narrowed within a step", instead="a method that cuts once a round"
        )
