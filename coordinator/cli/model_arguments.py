"""The model, cut and step that ``export``, ``bench`` and ``costs`` name on their command lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from coordinator.cli.command import parse_problem
from coordinator.exporting.step import rebuilt_from, step_of
from coordinator.language.source import is_language
from coordinator.methods import LANGUAGE_METHODS, METHODS, build_method
from coordinator.methods.method import Method
from coordinator.models.catalog import build_model, input_spec, model_entry
from coordinator.models.libraries.config_file import with_config_file
from coordinator.submodels.build import apply_cut
from coordinator.submodels.freeze import frozen_prefix
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, Level
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import InputSpec
from export.forms.step_form import PLAIN, StepForm, in_form

if TYPE_CHECKING:
    from torch import nn

    from export.training_step import CachedFeatures, KeptActivations, StepSpec

OPTIMIZERS = ("sgd", "adam", "adamw")


def kept_type(value: str) -> KeptActivations:
    """What ``--keep`` says.

    Raises:
        ConfigError: no such type.
    """
    from export.training_step import KeptActivations

    if value not in (known := get_args(KeptActivations)):
        raise parse_problem("--keep", f"'{value}' is unknown, known are {' and '.join(filter(None, known))}")
    return cast("KeptActivations", value)


@dataclass(frozen=True)
class Prepared:
    """A module ready for export: what it was cut from, its step, and what rebuilds it."""

    dense: nn.Module
    cut: Cut
    module: nn.Module
    step: StepSpec
    build: dict[str, Any]
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class ModelArguments:
    """What the command line said.

    Attributes:
        freeze: number of blocks, after the stem, whose parameters are frozen.
        cut: ``method:level[,key=value]`` or empty for the whole model.
        optimizer: ``sgd`` (with momentum), ``adam`` or ``adamw``, with weight decay.
        form: how the step is carried out.
        options: of the model, each ``key=value``.
        cached_features, frozen_norm: as of :class:`export.training_step.StepSpec`.
    """

    model: str
    input_shape: tuple[int, ...]
    classes: int
    batch: int
    freeze: int = 0
    cut: str = ""
    optimizer: str = "sgd"
    form: StepForm = PLAIN
    options: tuple[str, ...] = ()
    cached_features: CachedFeatures = ""
    frozen_norm: Literal["batch", "static"] = "batch"

    def prepare(self) -> Prepared:
        """The cut module and its step: the optimizer with weight decay, cross-entropy, running statistics.

        Raises:
            ConfigError: an unknown model, method or level, or more blocks to freeze than there are.
        """
        from export.training_step import Optimizer

        if self.optimizer not in OPTIMIZERS:
            raise parse_problem("--optimizer", f"'{self.optimizer}' is unknown, known are {', '.join(OPTIMIZERS)}")
        given = dict(key_and_value("--option", pair) for pair in self.options)
        model, options = with_config_file(self.model, given, Path.cwd())
        spec = input_spec(model, input_shape=self.input_shape or None, options=options)
        entry = model_entry(model)
        classes = self.classes or (entry.classes if entry else spec.vocabulary if is_language(model) else 0)
        if classes <= 0:
            raise parse_problem("--classes", f"model {model} needs its number of classes")
        dense = build_model(model, input_shape=spec.shape, classes=classes, **options)
        cut, program = parse_cut(dense, self.cut)
        module = apply_cut(dense, cut)
        optimizer = Optimizer(kind=cast('Literal["sgd", "adam", "adamw"]', self.optimizer))
        frozen = tuple(dict.fromkeys((*program.frozen, *frozen_prefix(module, self.freeze))))
        step = step_of(
            replace(program, frozen=frozen),
            dense,
            input_spec=spec,
            classes=classes,
            batch=self.batch,
            optimizer=optimizer,
            task=_next_token(spec, classes) if is_language(model) else None,
            cached_features=self.cached_features,
            frozen_norm=self.frozen_norm,
        )
        build = rebuilt_from(model, dense, cut, shape=spec.shape, classes=classes, options=options)
        return Prepared(dense, cut, module, in_form(step, self.form), build, tuple(str(i) for i in range(classes)))


def _next_token(spec: InputSpec, classes: int) -> dict[str, Any]:
    """What the task of a language model adds to its step."""
    from export.tasks.next_token import NextToken

    return {"task": "next-token", "tensors": NextToken().tensors(spec, classes)}


def parse_shape(text: str) -> tuple[int, ...]:
    """``3,32,32`` as numbers; empty for the model's own.

    Raises:
        ConfigError: anything else.
    """
    try:
        shape = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise parse_problem("--input", f"'{text}' is not a shape; write it as 3,32,32") from None
    if any(size < 1 for size in shape):
        raise parse_problem("--input", f"'{text}' has a size below 1")
    return shape


def parse_cut(dense: nn.Module, text: str) -> tuple[Cut, DeviceProgram]:
    """The cut that ``method:level[,key=value]`` names, and what devices holding it are asked to do.

    The level becomes the only one; a method with a ladder of its own has it among its levels, by value or name. The
    key ``round`` takes the cut of that round (from 0) of methods whose cuts change with rounds: ``slt:0.5,round=300``.

    Raises:
        ConfigError: unknown method or option, or a level that is neither a number nor one of the method's.
    """
    if not text:
        return {}, DeviceProgram()
    head, *pairs = text.split(",")
    name, _, level_text = head.partition(":")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, value = key_and_value("--cut", pair)
        options[key] = value
    round_index = options.pop("round", 0)
    if not isinstance(round_index, int) or round_index < 0:
        raise parse_problem("--cut", f"'round={round_index}' is not a round; write a whole number from 0")
    value = _number_or_text(level_text.strip())
    if not level_text.strip() or (name not in {*METHODS, *LANGUAGE_METHODS} and isinstance(value, str)):
        raise parse_problem("--cut", f"'{text}' has no level; write method:level, e.g. fedhm:4")
    method, chosen = _method_at(name, dense, value, options)
    cut = method.cut_shape(chosen, round_index=round_index, device="", seed=0)
    return cut, method.program(cut)


def key_and_value(flag: str, pair: str) -> tuple[str, Any]:
    """The two sides of ``key=value``; numbers are numbers.

    Raises:
        ConfigError: anything else.
    """
    key, equals, value = pair.partition("=")
    if not equals:
        raise parse_problem(flag, f"'{pair}' is not key=value")
    return key.strip(), _number_or_text(value.strip())


def _method_at(name: str, dense: nn.Module, value: Any, options: dict[str, Any]) -> tuple[Method, Level]:
    """The method with ``value`` as its only level, or with its own ladder that has it."""
    if not isinstance(value, str):
        try:
            method = build_method(name, dense, {**options, "levels": [value]})
            return method, method.levels()[0]
        except ConfigError as error:
            if not any("has no such option" in p and p.startswith("$.method.levels") for p in error.problems):
                raise
    method = build_method(name, dense, options)
    for level in method.levels():
        if value in (level.name, level.value):
            return method, level
    known = ", ".join(f"'{level.name}' ({level.value:g})" for level in method.levels())
    raise parse_problem("--cut", f"{name} has no level '{value}'; its levels are {known}")


def _number_or_text(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
