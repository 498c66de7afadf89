"""Which forms a step cannot take, and why; told before anything is exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.contracts.errors import ExportRefused
from edge.runtimes import KNOWN
from export.formats import FEATURES, format_for
from export.refused_layer import STEP

if TYPE_CHECKING:
    from torch import nn

    from export.formats import Format
    from export.training_step import StepSpec


def refused_form(module: nn.Module, spec: StepSpec, runtime: str) -> str:
    """Why a step in the form that ``spec`` asks for is refused; empty when it can be tried."""
    try:
        check_form(module, spec, runtime)
    except ExportRefused as error:
        return str(error)
    return ""


def check_form(module: nn.Module, spec: StepSpec, runtime: str) -> None:
    """Check that the step can be carried out in the form that ``spec`` asks for.

    Raises:
        ExportRefused: naming the layer, where it is a layer's fault.
    """
    for feature in ("accumulates", "recompute", "kept_activations"):
        if getattr(spec, feature):
            check_feature(spec, feature, runtime)
    if spec.kept_activations:
        _refuse_kept_activations(module, spec)
    if spec.cached_features:
        _refuse_changing_features(module, spec)
    if not spec.accumulates:
        return
    count = spec.micro_batches
    if spec.batch % count:
        raise ExportRefused(
            STEP,
            f"a batch of {spec.batch} does not divide into {count} equal micro-batches",
            instead=f"{', '.join(str(n) for n in range(2, spec.batch + 1) if spec.batch % n == 0)} micro-batches",
        )
    if spec.variants or spec.probe:
        what = FEATURES["variants" if spec.variants else "probe"]
        raise ExportRefused(STEP, f"{what} cannot go by micro-batches", instead="recomputation, or a smaller batch")
    _refuse_batch_statistics(module, spec)


def check_feature(spec: StepSpec, feature: str, runtime: str, exporter: Format | None = None) -> None:
    """Check that ``spec`` does without ``feature`` of :data:`export.formats.FEATURES`, or the format can write it.

    Args:
        exporter: the format, where it is not the runtime's ordinary one.

    Raises:
        ExportRefused: it cannot; the message lists the runtimes that can.
    """
    if getattr(spec, feature) and feature not in (exporter or format_for(runtime)).features:
        able = [name for name in KNOWN if feature in format_for(name).features]
        instead = f"runtime {' or '.join(able)}" if able else "a language model"
        raise ExportRefused(STEP, f"{runtime} cannot carry {FEATURES[feature]}", instead=instead)


def _refuse_kept_activations(module: nn.Module, spec: StepSpec) -> None:
    """What is saved must be what torch saves, or there is nothing to hold its rounding to."""
    from export.traceable_module import is_loop

    if spec.recompute:
        raise ExportRefused(
            STEP,
            "activations cannot both be kept in float16 and computed again: of rounded ones others would follow",
            instead="one of the two, or either with micro-batches",
        )
    for name, part in module.named_modules():
        if is_loop(part):
            raise ExportRefused(
                name,
                f"{type(part).__name__} is one operation with values of its own, which stay in float32",
                instead="recomputation or micro-batches",
            )


def _refuse_changing_features(module: nn.Module, spec: StepSpec) -> None:
    """What frozen layers give for an example has to be the same in every step."""
    from export.prepared_module import batch_norms, is_frozen

    if spec.input.augment:
        raise ExportRefused(
            STEP,
            f"examples are changed at random ({', '.join(spec.input.augment)}), so their features are other ones in "
            "every epoch and cannot be kept",
            instead="cached features without augmentation, or augmentation alone",
        )
    for name, norm in batch_norms(module).items():
        if spec.frozen_norm == "batch" and is_frozen(name, module, spec):
            raise ExportRefused(
                name,
                f"{type(norm).__name__}, frozen, normalises with the statistics of a batch, so an example's features "
                "depend on the others of it and cannot be kept",
                instead='[training] frozen-norm = "static"',
            )


def _refuse_batch_statistics(module: nn.Module, spec: StepSpec) -> None:
    from export.prepared_module import batch_norms, prepared_module

    for name, norm in batch_norms(prepared_module(module, spec)).items():
        if norm.training:
            raise ExportRefused(
                name,
                f"{type(norm).__name__} normalises with the statistics of a batch, and micro-batches have others, "
                "so their gradients would not be the batch's",
                instead="recomputation (BatchNorm), or GroupNorm and micro-batches",
            )
