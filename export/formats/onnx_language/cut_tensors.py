"""What the tensors of a cut of a language model are to its step: the base is mapped, factors are trained or frozen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from edge.contracts.errors import ExportRefused
from edge.contracts.tensors import BATCH, FEATURES, TensorSpec
from export.formats.onnx_language.layers import Factors
from export.language.additions import is_addition, is_beside_base, is_factor
from export.language.base_weights import base_specs
from export.language.causal_model import CausalModel
from export.refused_layer import STEP
from export.training_step import INPUT, TARGET, StepSpec

TASK = "next-token"


@dataclass(frozen=True)
class CutTensors:
    """The tensors of a cut.

    Attributes:
        base: of the base file, by name.
        factors: by the path of their layer, in the module's order.
        added: tensors of bottlenecks, prefixes and prompts, by name, in the module's order.
        symbols, target: what a step is fed, [batch, T].
        features: what enters the first trained block, [batch, T, D], where steps read it in place of ``symbols``.
    """

    base: dict[str, TensorSpec]
    factors: dict[str, Factors]
    symbols: TensorSpec
    target: TensorSpec
    added: dict[str, TensorSpec] = field(default_factory=dict)
    features: TensorSpec | None = None

    @property
    def first(self) -> int:
        """The lowest block with a tensor that moves, or that a prompt's gradient goes through."""
        return min(_block(spec.name) for spec in self.trained)

    @property
    def length(self) -> int:
        """Positions of an example."""
        return int(self.symbols.shape[1])

    @property
    def trained(self) -> tuple[TensorSpec, ...]:
        """The factors and additions that move."""
        factors = (spec for pair in self.factors.values() for spec in pair.trained)
        return (*factors, *(spec for spec in self.added.values() if spec.role == "parameter"))

    @property
    def held(self) -> tuple[TensorSpec, ...]:
        """The factors and additions that do not."""
        factors = (s for pair in self.factors.values() for s in (pair.u, pair.v) if s.role == "frozen")
        return (*factors, *(spec for spec in self.added.values() if spec.role == "frozen"))


def cut_tensors(module: CausalModel, spec: StepSpec) -> CutTensors:
    """The tensors of ``module`` and what ``spec`` does with them.

    Raises:
        ExportRefused: a step that the format cannot write, naming the tensor or the part of the step.
    """
    _check_step(spec)
    sizes = {name: tuple(value.shape) for name, value in module.named_parameters() if is_beside_base(name)}
    factors = {}
    for name, u_shape in ((name, shape) for name, shape in sizes.items() if is_factor(name)):
        path, _, side = name.rpartition(".")
        if side == "u":
            pair = (name, u_shape), (f"{path}.v", sizes[f"{path}.v"])
            factors[path] = Factors(*(_factor(each, shape, spec) for each, shape in pair))
    loose = [n for n, _ in module.named_parameters() if n not in sizes and n not in spec.frozen]
    if loose:
        raise ExportRefused(
            loose[0],
            f"is trained with {len(loose)} tensors of the base, which is mapped and never written",
            instead="a cut that freezes all but factors or additions, as fedlora,",
        )
    added = {name: _factor(name, shape, spec) for name, shape in sizes.items() if is_addition(name)}
    whole = TensorSpec(INPUT, (BATCH, *spec.input.shape), "int64", "input")
    target = TensorSpec(TARGET, (BATCH, *spec.input.shape), "int64", "target")
    module.check_length(spec.input.shape[0])
    tensors = CutTensors({s.name: s for s in base_specs(module)}, factors, whole, target, added)
    if not tensors.trained:
        raise ExportRefused(STEP, "no factor is trained", instead="a cut with factors that are not frozen")
    if not spec.cached_features or not tensors.first or module.prompt is not None:
        return tensors
    features = TensorSpec(FEATURES, (*whole.shape, module.architecture.hidden), spec.cached_features, "features")
    return replace(tensors, features=features)


def language_model(module: nn.Module) -> CausalModel:
    """``module`` itself.

    Raises:
        ExportRefused: it is another kind of module.
    """
    if not isinstance(module, CausalModel):
        raise ExportRefused(
            "(the module itself)", f"{type(module).__name__} is no causal language model", instead="runtime onnxruntime"
        )
    return module


def _factor(name: str, shape: tuple[int, ...], spec: StepSpec) -> TensorSpec:
    return TensorSpec(name, shape, "float32", "frozen" if name in spec.frozen else "parameter")


def _block(name: str) -> int:
    """The block of a tensor; 0 for a prompt, whose gradient goes through every block."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else 0


def _check_step(spec: StepSpec) -> None:
    if spec.task != TASK:
        raise ExportRefused(
            STEP, f"a language model trains for '{TASK}', not for '{spec.task or spec.loss}'", instead=f"task {TASK}"
        )
    beyond = {
        "a Frobenius penalty on factors": spec.frobenius,
        "accumulators of squared gradients": spec.squared_gradient,
        "a proximal term": spec.proximal,
        "corrected gradients": spec.corrected,
    }
    for what, is_used in beyond.items():
        if is_used:
            raise ExportRefused(STEP, f"a language model's step has no {what}", instead="a method without it")
