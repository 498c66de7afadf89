"""From a configuration to an exporter: the module of a cut, its step, its key, its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.exporting.initial_weights import load_initial_weights
from coordinator.exporting.model_form import in_model_form
from coordinator.exporting.parameter_groups import compiled_groups
from coordinator.exporting.step import rebuilt_from, step_of
from coordinator.exporting.task import task_fields
from coordinator.models.catalog import build_model, input_spec, model_entry
from coordinator.planning.estimate import CountedStep
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import Cut, cut_digest, cut_from_json
from coordinator.submodels.values import DeviceProgram
from coordinator.submodels.width import shape_of_cut
from edge.contracts.errors import ConfigError, ExportRefused, PlanError
from edge.contracts.manifest import ArtifactManifest, Cost, InputSpec
from edge.runtimes import traits_of
from export.forms.step_form import PLAIN, StepForm, in_form

if TYPE_CHECKING:
    from torch import nn

    from coordinator.config.run_config import RunConfig
    from export.training_step import StepSpec


class CutExporter:
    """Exports cuts of one model for one training configuration (a :class:`coordinator.planning.artifacts.Exporter`)."""

    def __init__(self, config: RunConfig, dense: nn.Module | None = None) -> None:
        """``dense`` is the run's module where it was made before; it is not changed."""
        self._config = config
        self._dense = dense_module(config) if dense is None else dense
        self._input = run_input_spec(config)
        self._task = task_fields(config, self._dense, self._input, len(class_names(config)))
        self._keys: dict[tuple[str, str, str, str], str] = {}
        self._counts: dict[tuple[str, str], CountedStep | None] = {}
        self._growths: dict[tuple[str, str, str], int] = {}
        self._written: dict[tuple[str, str, str, str], Cost | None] = {}
        self._refused_forms: dict[tuple[str, str, str, str], str] = {}
        self._others: dict[StepForm, CutExporter] = {}

    def _of_model(self, form: StepForm) -> CutExporter:
        """The exporter of the model with the window and the base of ``form``."""
        if form.of_model == PLAIN:
            return self
        if form.of_model not in self._others:
            self._others[form.of_model] = CutExporter(in_model_form(self._config, form))
        return self._others[form.of_model]

    def key(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> str:
        """See :class:`coordinator.planning.artifacts.Exporter`."""
        if (exporter := self._of_model(form)) is not self:
            return exporter.key(cut, program, runtime, form.of_step)
        from export.bundle import artifact_key

        shape = shape_of_cut(self._dense, cut)
        memo = (cut_digest(shape), repr(program), runtime, form.name)
        if memo not in self._keys:
            module = apply_cut(self._dense, shape)
            step = in_form(self.step(program), form)
            self._keys[memo] = artifact_key(module, step, build=self.build(shape), runtime=runtime)
        return self._keys[memo]

    def export(
        self, cut: Cut, program: DeviceProgram, runtime: str, out_dir: Path, form: StepForm = PLAIN
    ) -> ArtifactManifest:
        """See :class:`coordinator.planning.artifacts.Exporter`."""
        if (exporter := self._of_model(form)) is not self:
            return exporter.export(cut, program, runtime, out_dir, form.of_step)
        from export.bundle import export_artifact

        return export_artifact(
            apply_cut(self._dense, cut),
            in_form(self.step(program), form),
            out_dir,
            build=self.build(cut),
            classes=class_names(self._config),
            runtime=runtime,
        )

    def module(self, cut: Cut) -> nn.Module:
        """The run's module, cut."""
        return apply_cut(self._dense, cut)

    def unable(self, program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        """See :class:`coordinator.planning.artifacts.Exporter`."""
        from export.formats import FEATURES, format_for, format_named

        language = traits_of(runtime).language_format if program.has_base else ""
        features = (format_named(language) if language else format_for(runtime)).features
        step = self.step(program)
        return tuple(words for name, words in FEATURES.items() if getattr(step, name) and name not in features)

    def refused_form(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> str:
        """See :class:`coordinator.planning.artifacts.Exporter`."""
        if (exporter := self._of_model(form)) is not self:
            return exporter.refused_form(cut, program, runtime, form.of_step)
        from export.form_refusal import refused_form

        if form.micro_batches > 1 and self._config.training.last_batch == "keep":
            return (
                "micro-batches are equal parts of whole batches, and last-batch = keep has smaller ones; drop or wrap"
            )
        shape, batch = shape_of_cut(self._dense, cut), self._config.training.batch
        # Any number of parts that divides the batch is refused for the same reason, or none is.
        parts = min(form.micro_batches, 2) if batch % form.micro_batches == 0 else form.micro_batches
        memo = (cut_digest(shape), repr(program), runtime, f"{parts} {form.recompute} {form.keep}")
        if memo not in self._refused_forms:
            module, step = apply_cut(self._dense, shape), in_form(self.step(program), form)
            self._refused_forms[memo] = refused_form(module, step, runtime)
        return self._refused_forms[memo]

    def written_cost(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> Cost | None:
        """See :class:`coordinator.planning.artifacts.WritesSteps`; None of a model whose step is traced."""
        if not program.has_base:
            return None
        if (exporter := self._of_model(form)) is not self:
            return exporter.written_cost(cut, program, runtime, form.of_step)
        from export.bundle import written_cost

        shape = shape_of_cut(self._dense, cut)
        memo = (cut_digest(shape), repr(program), runtime, form.name)
        if memo not in self._written:
            try:
                step = in_form(self.step(program), form)
                self._written[memo] = written_cost(apply_cut(self._dense, shape), step, runtime=runtime)
            except ExportRefused:  # the export says why
                self._written[memo] = None
        return self._written[memo]

    def growth_bytes(self, cut: Cut, program: DeviceProgram, runtime: str) -> int:
        """What an export would state as ``predicted_peak_bytes``, told in a fraction of a second without one.

        Exactly where a step is written without being traced, elsewhere as
        :func:`coordinator.submodels.step_memory.step_growth_bytes` tells it.

        Raises:
            PlanError: the model does not run on the meta device.
            ExportRefused: no step can have one of its layers.
        """
        if (written := self.written_cost(cut, program, runtime, PLAIN)) is not None:
            return written.predicted_peak_bytes
        from coordinator.submodels.step_memory import step_growth_bytes

        shape = shape_of_cut(self._dense, cut)
        memo = (cut_digest(shape), repr(program), runtime)
        if memo not in self._growths:
            try:
                growth = step_growth_bytes(apply_cut(self._dense, shape), self.step(program), runtime)
            except (RuntimeError, NotImplementedError) as error:
                raise PlanError(
                    f"the memory of a step of {self._config.model.build} cannot be told without exporting it: {error}",
                    hint="give local groups a level in place of a budget; apportion plan exports it",
                ) from error
            self._growths[memo] = growth
        return self._growths[memo]

    def counted(self, cut: Cut, program: DeviceProgram, runtime: str) -> CountedStep | None:
        """See :class:`coordinator.planning.artifacts.CountsSteps`; None where a model does not run on meta."""
        from coordinator.submodels.costs import cut_costs
        from export.formats.of_module import format_of

        shape = shape_of_cut(self._dense, cut)
        memo = (cut_digest(shape), runtime)
        if memo not in self._counts:
            training = self._config.training
            slots = 2 if training.optimizer != "sgd" else int(training.momentum > 0)
            try:
                costs = cut_costs(self._dense, shape, self._input, batch=training.batch)
                form = format_of(self._dense, runtime)
            except (RuntimeError, NotImplementedError, ExportRefused):
                self._counts[memo] = None
            else:
                written = 0 if form.writes_over else (1 + slots) * costs.bytes_up
                self._counts[memo] = CountedStep(
                    state_bytes=costs.bytes_down + slots * costs.bytes_up,
                    twice_bytes=written + (costs.bytes_up if form.buffers_gradients else 0),
                    trained_bytes=costs.bytes_up,
                    activation_bytes=max(0, costs.train_bytes - 4 * costs.params - costs.bytes_up),
                    macs=costs.macs,
                )
        return self._counts[memo]

    def step(self, program: DeviceProgram) -> StepSpec:
        """The step the devices are asked to do, as the exporter specifies it."""
        from export.training_step import Optimizer

        training = self._config.training
        return step_of(
            program,
            self._dense,
            input_spec=self._input,
            classes=len(class_names(self._config)),
            batch=training.batch,
            optimizer=Optimizer(
                kind=training.optimizer,
                momentum=training.momentum > 0,
                nesterov=training.nesterov,
                weight_decay=training.weight_decay > 0,
            ),
            loss=training.loss,
            clip_norm=training.clip_norm > 0,
            proximal=training.proximal_mu > 0,
            task=self._task,
            corrected=training.scaffold,
            groups=compiled_groups(training.groups),
            cached_features=training.cached_features,
            frozen_norm=training.frozen_norm,
        )

    def build(self, cut: Cut) -> dict[str, Any]:
        """What ``verify`` rebuilds the module from."""
        model, classes = self._config.model, len(class_names(self._config))
        made = rebuilt_from(
            model.build, self._dense, cut, shape=self._input.shape, classes=classes, options=model.options
        )
        return {**made, "vocabulary": model.vocabulary} if model.vocabulary else made


def rebuild_module(build: Mapping[str, Any]) -> nn.Module:
    """The module an artifact was exported from, by its manifest's ``build``.

    Raises:
        ConfigError: a model this installation does not have.
    """
    dense = build_model(
        build["model"],
        input_shape=tuple(build["input"]),
        classes=build["classes"],
        vocabulary=build.get("vocabulary", 0),
        **build.get("options", {}),
    )
    return apply_cut(dense, cut_from_json(build.get("cut", {})))


def dense_module(config: RunConfig) -> nn.Module:
    """The whole model of a run with its initial weights: those of its file, all others a function of its seed.

    Raises:
        ConfigError: as :func:`coordinator.exporting.initial_weights.load_initial_weights`, and build_model's.
    """
    module = build_model(
        config.model.build,
        input_shape=config.model.input or None,
        classes=len(class_names(config)),
        seed=config.federation.seed,
        vocabulary=config.model.vocabulary,
        **config.model.options,
    )
    if config.model.weights:
        load_initial_weights(
            module,
            Path(config.model.weights),
            config.model.weights_except,
            names=config.model.weights_map,
            build=config.model.build,
        )
    return module


def run_input_spec(config: RunConfig) -> InputSpec:
    """How examples become the model's input in this run: the model's layout, the run's normalisation."""
    import msgspec

    model = config.model
    spec = input_spec(model.build, input_shape=model.input or None, options=model.options, vocabulary=model.vocabulary)
    data = config.data
    return msgspec.structs.replace(spec, mean=data.mean, std=data.std, scale=data.scale, augment=data.augment)


def class_names(config: RunConfig) -> tuple[str, ...]:
    """Ordered class names: the configured ones, or the model's own, called ``0`` to ``count - 1``.

    Raises:
        ConfigError: an own model whose configuration names no classes.
    """
    if config.model.classes:
        return config.model.classes
    entry = model_entry(config.model.build)
    if entry is None and config.task.name:
        return ("0",)
    if entry is None:
        raise ConfigError([f"$.model.classes: {config.model.build} needs its classes, a count or their names"])
    return tuple(str(i) for i in range(entry.classes))
