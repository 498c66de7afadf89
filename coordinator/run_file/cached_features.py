"""What of a run cannot go together with ``[training] cached-features``, what frozen layers give kept by devices.

What frozen layers give for an example has to be the same in every step: no example changed at random below them, and no
norm among them that looks at the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.config.run_config import RunConfig
from coordinator.language.source import is_language
from coordinator.methods.method import CountsOnFeatures, ShapesFollowState

if TYPE_CHECKING:
    from torch import nn

    from coordinator.methods.method import Method

_WHERE, _NORM = "$.training.cached-features", "$.training.frozen-norm"


def check_cached_features(config: RunConfig, problems: list[str]) -> None:
    """Add what the file alone shows to ``problems``, each with its path."""
    kept = config.training.cached_features
    if not kept:
        return
    if is_language(config.model.build):
        if kept == "int8":
            problems.append(f"{_WHERE}: 'int8' is not for language models, whose streams are wide; use float16")
        return
    if config.data.augment:
        problems.append(
            f"$.data.augment: {list(config.data.augment)} change an example at random in every epoch, so its features "
            f"cannot be kept; leave it out, or {_WHERE}"
        )


def check_frozen_layers(config: RunConfig, module: nn.Module, method: Method, problems: list[str]) -> None:
    """Add what model and method show to ``problems``: norms of the batch, or nothing that is frozen."""
    training = config.training
    counts = isinstance(method, CountsOnFeatures) and method.counts_on_features
    if counts and not training.cached_features:
        problems.append(
            '$.method.features: "kept" counts on devices that keep what frozen layers give; set cached-features in '
            "[training], or leave it out"
        )
    if is_language(config.model.build) or not (training.cached_features or training.frozen_norm == "static"):
        return
    from export.prepared_module import batch_norms

    norms = batch_norms(module)
    programs = [
        method.program(method.cut_shape(level, round_index=number, device="", seed=config.federation.seed))
        for level in method.levels()
        for number in (0, config.federation.rounds - 1)
    ]
    if norms and training.frozen_norm == "static" and any(program.norm == "batch" for program in programs):
        problems.append(
            f"{_NORM}: 'static' normalises with running statistics, and {method.name} trains without any; set "
            'norm = "running" in [method]'
        )
    if not training.cached_features:
        return
    if norms and training.frozen_norm == "batch":
        problems.append(
            f"{_WHERE}: '{training.cached_features}' keeps what frozen layers give for an example, and the batch norm "
            f"'{next(iter(norms))}' would make it depend on the rest of the batch; set frozen-norm = \"static\" in "
            "[training]"
        )
    if not isinstance(method, ShapesFollowState) and not any(program.frozen for program in programs):
        problems.append(f"{_WHERE}: method {method.name} freezes nothing, so there is nothing to keep; leave it out")
