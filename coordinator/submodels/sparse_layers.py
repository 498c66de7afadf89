"""Which masked layers a device holds as kept entries alone: those that it measured to be faster so.

Masks stay values: an artifact has room for a number of entries and serves every mask that keeps no more. Room shrinks
in steps of a tenth, so that a mask that changes a little needs no new artifact, and a device holds at most a ninth more
than it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.submodels.record import LayerCut
from edge.contracts.packing import MASK

if TYPE_CHECKING:
    from torch import nn

    from coordinator.submodels.values import Submodel
    from edge.contracts.manifest import ArtifactManifest

KINDS = {2: "linear", 4: "convolution"}
"""Kind of layer by the dimensions of its weight, as a device's profile names it."""
SMALLEST = 4096
"""Entries below which a layer stays dense: its time is that of everything around it."""
STEP = 0.9
WHOLE = LayerCut()
DENSE = "dense"


def with_sparse_layers(submodel: Submodel, below: Mapping[str, float]) -> Submodel:
    """``submodel`` with the layers in sparse form whose density is below what the device measured for their kind.

    Layers whose squared gradients are wanted stay dense, and all do in a step of several programs or with a teacher.

    Args:
        below: density by kind of layer, from the device's profile in the ledger.
    """
    program = submodel.program
    if program.variants or program.distillation or program.probe:
        return submodel
    chosen = []
    for name in program.masked:
        mask, record = submodel.tensors[name + MASK], submodel.cut.get(name.rpartition(".")[0], WHOLE)
        kind = KINDS.get(mask.ndim, "")
        if name in program.accumulators or kind not in below or mask.size < SMALLEST:
            continue
        if not record.mask or record.factor is not None:
            continue  # the device's layer is not the module's own
        kept = int(mask.sum())
        if kept <= below[kind] * mask.size:
            chosen.append((name, room(kept, mask.size)))
    return replace(submodel, program=replace(program, sparse=tuple(chosen))) if chosen else submodel


def room(kept: int, size: int) -> int:
    """The least of ``size``, 0.9 ``size``, 0.81 ``size``, ... (rounded down each time) that holds ``kept`` entries."""
    capacity = size
    while (smaller := int(capacity * STEP)) >= max(kept, 1):
        capacity = smaller
    return capacity


def has_sparse_kernels(module: nn.Module, name: str) -> bool:
    """Whether weight ``name`` of ``module`` is a linear layer's, or a 2-D convolution's of stride 1 and one group."""
    from torch import nn

    path, _, parameter = name.rpartition(".")
    try:
        layer = module.get_submodule(path)
    except AttributeError:
        return False
    if parameter != "weight":
        return False
    if isinstance(layer, nn.Conv2d):
        is_narrow = isinstance(layer.padding, str) or all(
            p <= (k - 1) * d for p, k, d in zip(layer.padding, layer.kernel_size, layer.dilation, strict=True)
        )
        return layer.stride == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros" and is_narrow
    return isinstance(layer, nn.Linear)


def layer_forms(manifest: ArtifactManifest) -> dict[str, str]:
    """By the name of each masked weight of an artifact, the form it is trained in: for people and metrics."""
    forms = {}
    for spec in manifest.specs("grad_mask"):
        share = f"sparse, room for {spec.capacity} of {spec.element_count()}" if spec.capacity else DENSE
        forms[spec.name.removesuffix(MASK)] = share
    return forms
