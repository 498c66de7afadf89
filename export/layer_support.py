"""Layers against runtimes, before anything is exported: what each format would train, rewrite or refuse.

Nothing is listed by hand: the step is traced as it is for an export, and every format says of every operation what it
would do with it (:class:`export.formats.survey.Survey`). A layer that cannot be traced gets a stand-in, so that the
others are seen too; layers inside it are then looked at one by one. What a survey cannot say is whether the
numbers are right: that is the parity gate's part, at export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from edge.contracts.errors import ApportionError, ExportRefused
from export.capture import MODULE_ITSELF, Capture
from export.formats import format_for
from export.formats.survey import Survey
from export.forward_check import check_forward
from export.layer_inventory import Layer, layers_of
from export.refused_layer import with_layer_type
from export.surveyed_step import SurveyedStep
from export.training_step import StepSpec

_MOVES = frozenset({"view", "_unsafe_view", "permute", "expand", "clone", "unsqueeze", "squeeze", "detach", "alias"})
"""Operations that change where numbers lie and nothing else: not worth a line."""
_GRADIENT = "grad:"

State = Literal["trains", "rewritten", "no gradient", "refused", "not seen"]


@dataclass(frozen=True)
class Verdict:
    """What a runtime makes of a layer.

    Attributes:
        state: ``trains`` as it is; ``rewritten``: trains, after ``passes``; ``no gradient``: runs forward only;
            ``refused``: does not run; ``not seen``: it is inside a layer that cannot be traced.
        passes: names of what rewrites it.
        reason: of ``no gradient`` and ``refused``.
        instead: what to use in place of it.
    """

    state: State
    passes: tuple[str, ...] = ()
    reason: str = ""
    instead: str = ""

    @property
    def is_trained(self) -> bool:
        """Whether the layer is no obstacle to training."""
        return self.state in ("trains", "rewritten")


@dataclass
class LayerSupport:
    """The layers of a module against runtimes.

    Attributes:
        layers: those that are called or refused, by path in calling order.
        verdicts: runtime -> path -> what it makes of the layer.
        missing: runtime -> what this machine lacks to say so.
        passes: name -> what it does in a line, of all passes among the verdicts.
        operations: of a layer with layers inside: path -> what its own forward does besides.
        unreached: trained parameters that no gradient reaches: unused in the forward pass, or cut off from the loss.
    """

    layers: dict[str, Layer]
    verdicts: dict[str, dict[str, Verdict]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    passes: dict[str, str] = field(default_factory=dict)
    operations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unreached: tuple[str, ...] = ()

    def trained_by(self) -> list[str]:
        """Runtimes that train every layer."""
        return [name for name, rows in self.verdicts.items() if all(v.is_trained for v in rows.values())]


def layer_support(module: nn.Module, spec: StepSpec, runtimes: Sequence[str]) -> LayerSupport:
    """What the formats of ``runtimes`` would do with every layer of ``module``'s step.

    Raises:
        ExportRefused: the module does not run at all on its own input.
        ConfigError: unknown runtime.
    """
    try:
        check_forward(module, spec)
    except ExportRefused as error:
        raise with_layer_type(error, module) from error
    formats = {runtime: format_for(runtime) for runtime in runtimes}
    step = SurveyedStep(module, spec, layers_of(module, spec))
    surveys: dict[str, Survey] = {}
    result = LayerSupport(step.layers)
    for runtime, writer in formats.items():
        try:
            surveys[runtime] = step.survey(writer)
        except (ApportionError, ImportError) as error:
            result.missing[runtime] = str(error)
        except Exception as error:  # a survey is worth less than an answer for the other runtimes
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
            result.missing[runtime] = f"its survey fails on this model ({what}); export the model to see"
    try:
        check_forward(module, spec, "float64")
    except ExportRefused as error:
        # Where a format refuses what computes in another type, it has said so better.
        for survey in surveys.values():
            if not survey.refusals:
                survey.refuse(error)
    traced = step.training_program()
    if traced is not None:
        train, stand_ins = traced
        looked_at = {path: layer for path, layer in step.layers.items() if path not in stand_ins}
        result.operations, result.unreached = _own_operations(train, looked_at), _unreached(train)
    refused = {r.layer for survey in surveys.values() for r in survey.refusals}
    result.layers = {
        path: layer
        for path, layer in step.layers.items()
        if layer.is_leaf or path in result.operations or (path or MODULE_ITSELF) in refused
    }
    for runtime, survey in surveys.items():
        result.verdicts[runtime] = {path: _verdict(path, survey) for path in result.layers}
        result.passes |= {n: m for n, m in survey.passes.items() if any(n in r for r in survey.rewritten.values())}
    return result


def _verdict(path: str, survey: Survey) -> Verdict:
    layer = path or MODULE_ITSELF
    passes = tuple(sorted(survey.rewritten.get(layer, ())))
    own = sorted((r for r in survey.refusals if r.layer == layer), key=lambda r: r.is_gradient)
    if own:
        state: State = "no gradient" if own[0].is_gradient else "refused"
        return Verdict(state, passes, own[0].reason, own[0].instead)
    if path in survey.unseen:
        return Verdict("not seen", reason=f"it is part of '{survey.unseen[path]}', which cannot be traced")
    return Verdict("rewritten" if passes else "trains", passes)


def _own_operations(train: Capture, layers: Mapping[str, Layer]) -> dict[str, tuple[str, ...]]:
    """Path of a layer with layers inside -> names of the operations of its own forward, in order."""
    found: dict[str, dict[str, None]] = {}
    for node in train.graph.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        path = str(next(reversed(stack))) if stack else None
        if path is None or path not in layers or layers[path].is_leaf:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.partition("::")[2]
        if name not in _MOVES and not name.startswith("sym_"):
            found.setdefault(path, {})[name] = None
    return {path: tuple(names) for path, names in found.items()}


def _unreached(train: Capture) -> tuple[str, ...]:
    """Trained parameters whose gradient does not depend on the targets."""
    graph = train.graph.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    reached = {node for node, spec in zip(places, train.inputs, strict=True) if spec.role == "target"}
    for node in graph.nodes:
        if reached.intersection(node.all_input_nodes):
            reached.add(node)
    output = next(node for node in graph.nodes if node.op == "output")
    values = dict(zip((*train.outputs, *train.hidden), output.args[0], strict=True))
    return tuple(n.removeprefix(_GRADIENT) for n, v in values.items() if n.startswith(_GRADIENT) and v not in reached)
