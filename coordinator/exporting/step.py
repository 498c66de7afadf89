"""The step that devices are asked to do, as the exporter specifies it; and what an artifact is rebuilt from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from coordinator.submodels.record import Cut, cut_to_json
from coordinator.submodels.sparse_layers import has_sparse_kernels
from coordinator.submodels.values import DeviceProgram
from coordinator.submodels.width import shape_of_cut
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import InputSpec

if TYPE_CHECKING:
    from torch import nn

    from export.training_step import CachedFeatures, Loss, Optimizer, ParameterGroup, StepSpec


def step_of(
    program: DeviceProgram,
    dense: nn.Module,
    *,
    input_spec: InputSpec,
    classes: int,
    batch: int,
    optimizer: Optimizer,
    loss: str = "cross_entropy",
    clip_norm: bool = False,
    proximal: bool = False,
    task: Mapping[str, Any] | None = None,
    corrected: bool = False,
    groups: tuple[ParameterGroup, ...] = (),
    cached_features: CachedFeatures = "",
    frozen_norm: Literal["batch", "static"] = "batch",
) -> StepSpec:
    """The step of ``program`` with the training of a run.

    Args:
        dense: the whole module, which says which layers have kernels for kept entries.
        loss: where the program asks for none but ``cross_entropy``.
        task: of :func:`coordinator.exporting.task.task_fields`.

    Raises:
        ConfigError: the program asks for what a task does not have.
    """
    from export.training_step import FactorPair, SparseWeight, StepSpec, Variant

    made = partial(
        StepSpec,
        input=input_spec,
        classes=classes,
        batch=batch,
        loss=cast("Loss", loss if program.loss == "cross_entropy" else program.loss),
        optimizer=optimizer,
        clip_norm=clip_norm,
        frobenius=tuple(FactorPair(u=u, v=v) for u, v in program.frobenius),
        frozen=program.frozen,
        squared_gradient=program.accumulators,
        masked=program.masked,
        # Received weights and corrections are dense, and what a sparse layer holds meets them.
        sparse=tuple(
            SparseWeight(name, room)
            for name, room in program.sparse
            if has_sparse_kernels(dense, name) and not proximal and not corrected
        ),
        distillation=program.distillation,
        norm=cast('Literal["running", "batch"]', program.norm),
        variants=tuple(Variant(v.name, v.sizes, v.submodule) for v in program.variants),
        probe=program.probe,
        proximal=proximal,
        corrected=corrected,
        groups=groups,
        cached_features=cached_features,
        frozen_norm=program.frozen_norm or frozen_norm,
    )
    try:
        return made(**(task or {}))
    except ValueError as error:
        raise ConfigError([f"$.task.name: {error}"]) from error


def rebuilt_from(
    model: str, dense: nn.Module, cut: Cut, *, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What ``verify`` rebuilds the module of an artifact from."""
    return {
        "model": model,
        "input": list(shape),
        "classes": classes,
        "options": dict(options),
        # Shapes alone: a window that moves every round has one artifact.
        "cut": cut_to_json(shape_of_cut(dense, cut)),
    }
