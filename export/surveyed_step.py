"""One step as formats survey it: traced once per set of stand-ins, every layer looked at, in place or by itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from edge.contracts.errors import ExportRefused
from edge.contracts.manifest import InputSpec
from export.capture import MODULE_ITSELF, Capture, capture, layer_of
from export.formats import Format
from export.formats.survey import CapturedStep, Survey
from export.layer_inventory import BatchSize, Layer, Shape, layers_of, uncalled_layer
from export.programs import program_functions
from export.traceable_module import replaced_forwards
from export.training_step import StepSpec

_LAYER_OPERATIONS = "apportion"
"""Namespace of the operations that stand for a whole recurrent layer."""


class SurveyedStep:
    """A module's step, before anything is exported.

    Attributes:
        layers: path -> layer; refused ones that are never called join while surveying.
    """

    def __init__(self, module: nn.Module, spec: StepSpec, layers: Mapping[str, Layer]) -> None:
        self.layers = dict(layers)
        self._module, self._spec = module, spec
        self._parts = dict(module.named_modules())
        self._recurrent = {n for n, part in self._parts.items() if isinstance(part, nn.RNNBase)}
        self._traced: dict[tuple[frozenset[str], frozenset[str]], CapturedStep | ExportRefused] = {}
        self._alone: dict[object, SurveyedStep | None] = {}

    def survey(self, writer: Format) -> Survey:
        """What ``writer`` would do with every layer; those inside a layer that cannot be traced are looked at alone."""
        survey, stand_ins = Survey(), frozenset[str]()
        while True:
            loops_taken: set[frozenset[str]] = set()
            try:
                found = self._survey_in_place(writer, stand_ins, loops_taken)
            except ExportRefused as error:
                survey.refuse(error)
                path = "" if error.layer == MODULE_ITSELF else error.layer
                if path in stand_ins or not self._can_replace(path):
                    self._look_inside("", writer, survey)
                    return survey
                stand_ins |= {path}
                continue
            survey.include(found, {n: n for n in self._parts if n not in stand_ins} | {MODULE_ITSELF: MODULE_ITSELF})
            for loops in loops_taken:
                self._note_replaced(stand_ins, loops, survey)
            for path in sorted(stand_ins):
                self._look_inside(path, writer, survey)
            return survey

    def training_program(self) -> tuple[Capture, frozenset[str]] | None:
        """The traced ``train`` with as few stand-ins as can be, and their paths; None where it cannot be traced."""
        traced = [(key[0], step) for key, step in self._traced.items() if isinstance(step, CapturedStep)]
        if not traced:
            return None
        stand_ins, step = min(traced, key=lambda pair: len(pair[0]))
        return step.programs["train"], stand_ins

    def _survey_in_place(self, writer: Format, stand_ins: frozenset[str], loops_taken: set[frozenset[str]]) -> Survey:
        def captured(loops: frozenset[str]) -> CapturedStep:
            loops_taken.add(loops)
            return self._captured(stand_ins, loops)

        return writer.survey(self._with(stand_ins), self._spec, captured)

    def _captured(self, stand_ins: frozenset[str], loops: frozenset[str]) -> CapturedStep:
        key = (stand_ins, loops & {type(self._parts[n]).__name__.lower() for n in self._recurrent})
        if key not in self._traced:
            try:
                functions = program_functions(self._with(stand_ins), self._spec, loops=loops)
                programs = {n: capture(f.function, f.inputs, f.module) for n, f in functions.items()}
                self._traced[key] = CapturedStep(functions, programs)
            except ExportRefused as error:
                self._traced[key] = error
        known = self._traced[key]
        if isinstance(known, ExportRefused):
            raise known
        return known

    def _with(self, stand_ins: frozenset[str]) -> nn.Module:
        module = copy.deepcopy(self._module)
        for path in sorted(stand_ins):
            module = with_stand_in(module, self.layers[path])
        return module

    def _can_replace(self, path: str) -> bool:
        if not path or path not in self._parts:
            return False
        if path not in self.layers:
            self.layers[path] = uncalled_layer(path, self._parts[path])
        return can_stand_in(self.layers[path])

    def _note_replaced(self, stand_ins: frozenset[str], loops: frozenset[str], survey: Survey) -> None:
        """Note the layers that are traced with another forward than torch's own."""
        nodes = self._captured(stand_ins, loops).programs["train"].graph.graph.nodes
        whole = {layer_of(n) for n in nodes if getattr(n.target, "namespace", "") == _LAYER_OPERATIONS}
        for path, forward in replaced_forwards(self._module, loops).items():
            if path not in stand_ins and (path in whole or path not in self._recurrent):
                survey.rewrite(path, forward.__name__.strip("_").removesuffix("_forward"), str(forward.__doc__))

    def _look_inside(self, path: str, writer: Format, survey: Survey) -> None:
        """Survey the layers inside ``path``, which cannot be traced, each by itself."""
        inside = f"{path}." if path else ""
        for name, layer in self.layers.items():
            if layer.is_leaf and name.startswith(inside) and name != path and not survey.refuses(name):
                alone = self._lone_step(layer)
                if alone is None:
                    survey.unseen[name] = path or MODULE_ITSELF
                    continue
                found = alone.survey(writer)
                survey.include(found, {n: name + n.removeprefix(LONE) for n in alone._parts if n.startswith(LONE)})
                survey.refusals += [replace(r, layer=name) for r in found.refusals if r.layer == MODULE_ITSELF]

    def _lone_step(self, layer: Layer) -> SurveyedStep | None:
        part = self._parts[layer.path]
        # Two layers of torch that are set up alike are alike; of others only their author knows.
        ours = not type(part).__module__.startswith("torch.nn.modules")
        key = layer.path if ours else (layer.kind, layer.settings, layer.takes, layer.gives)
        if key not in self._alone:
            lone = lone_layer(layer, part, self._spec)
            self._alone[key] = None if lone is None else SurveyedStep(*lone, layers_of(*lone))
        return self._alone[key]


LONE = "layer"
"""Path of the layer in its step."""


class LoneLayer(nn.Module):
    """The layer between a scale, so that its own input needs a gradient, and a classifier."""

    def __init__(self, layer: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.layer = layer
        self.classifier = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes]."""
        result: Tensor = self.classifier(self.layer(x * self.scale if x.is_floating_point() else x).flatten(1))
        return result


def lone_layer(layer: Layer, part: nn.Module, spec: StepSpec) -> tuple[nn.Module, StepSpec] | None:
    """A module of ``part`` and its step, otherwise as ``spec``; None unless it takes one tensor and gives one."""
    if len(layer.takes) != 1 or len(layer.gives) != 1:
        return None
    (taken,), (given,) = layer.takes, layer.gives
    if given is None:
        return None
    sizes, features = _per_example(taken.shape), _per_example(given.shape)
    if not sizes or not features or not given.dtype.is_floating_point:
        return None
    dtype: Literal["float32", "int64"] = "float32" if taken.dtype.is_floating_point else "int64"
    rows = getattr(part, "num_embeddings", 2)
    module = LoneLayer(copy.deepcopy(part), math.prod(features), spec.classes)
    lone = StepSpec(
        input=InputSpec(layout="features", shape=sizes, dtype=dtype, vocabulary=0 if dtype == "float32" else rows),
        classes=spec.classes,
        batch=spec.batch,
        optimizer=spec.optimizer,
        norm=spec.norm,
    )
    return module, lone


def _per_example(shape: tuple[int | BatchSize, ...]) -> tuple[int, ...] | None:
    """Sizes after the batch; None where the first size is not the batch, or another one depends on it."""
    rest = tuple(size for size in shape[1:] if isinstance(size, int))
    return rest if shape and shape[0] == BatchSize(1, 0) and len(rest) == len(shape) - 1 else None


class StandIn(nn.Module):
    """Gives tensors of the layer's shapes that depend on every number it takes; keeps its names."""

    def __init__(self, layer: Layer, replaced: nn.Module) -> None:
        super().__init__()
        self._layer = layer
        self._parameters, self._buffers, self._modules = replaced._parameters, replaced._buffers, replaced._modules

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer gives, in shape."""
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        batch = self._batch(given)
        numbers = [v for v in (*given, *self.parameters()) if v.is_floating_point()]
        anchor = torch.stack([value.sum() for value in numbers]).sum() if numbers else torch.zeros(())
        results = [None if v is None else _filled(anchor, v.shape, v.dtype, batch) for v in self._layer.gives]
        return None if self._layer.form is None else tree_unflatten(results, self._layer.form)

    def _batch(self, given: list[Tensor]) -> Any:
        """The batch size, from the first size among the arguments that tells it."""
        for tensor, value in zip(given, self._layer.takes, strict=False):
            for size, known in zip(tensor.shape, value.shape, strict=False):
                if isinstance(known, BatchSize):
                    return size if known == BatchSize(1, 0) else (size - known.offset) // known.slope
        return 1


def can_stand_in(layer: Layer) -> bool:
    """Whether the layer gives a tensor, or is never called."""
    return layer.form is None or any(value is not None for value in layer.gives)


def with_stand_in(module: nn.Module, layer: Layer) -> nn.Module:
    """A copy of ``module`` with a stand-in for ``layer``, which is not the module itself."""
    copied = copy.deepcopy(module)
    copied.set_submodule(layer.path, StandIn(layer, copied.get_submodule(layer.path)))
    return copied


def _filled(anchor: Tensor, shape: Shape, dtype: torch.dtype, batch: Any) -> Tensor:
    sizes = [size.slope * batch + size.offset if isinstance(size, BatchSize) else size for size in shape]
    empty = torch.zeros(sizes)
    return anchor + empty if dtype.is_floating_point else empty.to(dtype)
