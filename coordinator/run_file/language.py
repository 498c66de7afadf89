"""What a run with a language model cannot be combined with: its weights are a file, its state what is beside it."""

from __future__ import annotations

from typing import get_args

from coordinator.config.run_config import RunConfig
from coordinator.language.source import BASE, is_language
from coordinator.methods.language import ADDITIONS
from coordinator.methods.language.mixed_additions import mixes_additions
from export.language.architecture import Precision

_SERVER = "a step of the server is taken on a mean of factors, whose basis is another one in each round"


def check_language(config: RunConfig, problems: list[str]) -> None:
    """Add what the language model of ``config`` does not go with to ``problems``; nothing of another model."""
    build = config.model.build
    if not is_language(build):
        if config.evaluation.choices:
            problems.append(f"$.evaluation.choices: questions are for language models, {build} is none; leave it out")
        problems += [
            f"$.planner.{key}: is of language models, and {build} is none; leave it out"
            for key, is_used in (("windows", config.planner.windows), ("bases", config.planner.bases))
            if is_used
        ]
        return
    _check_forms(config, problems)
    if config.task.name != "next-token":
        given = f"'{config.task.name}' given" if config.task.name else "is missing"
        problems.append(f'$.task.name: {given}; {build} is trained for "next-token"')
    is_added = config.method.name in ADDITIONS
    if config.aggregation.rule != "mean" and not is_added:
        problems.append(
            f"$.aggregation.rule: '{config.aggregation.rule}' compares entries, and factors of two devices may be in "
            "different bases; use mean"
        )
    if config.server_optimizer.name and not is_added:
        problems.append(f"$.server-optimizer.name: {_SERVER}; leave $.server-optimizer out")
    asked = {
        "personal.layers": bool(config.personal.layers),
        "clusters": bool(config.clusters.layers),
        "training.scaffold": config.training.scaffold,
        "training.proximal-mu": bool(config.training.proximal_mu),
    }
    problems += [
        f"$.{key}: a language model's step has factors or additions alone, and nothing of this yet; leave it out"
        for key, is_used in asked.items()
        if is_used
    ]
    if mixes_additions(config.method.name, config.method.options):
        privacy = config.privacy
        hidden = {"secure-aggregation": privacy.secure_aggregation, "noise-multiplier": privacy.noise_multiplier > 0}
        problems += [
            f"$.privacy.{key}: devices of several sizes or depths hold different parts, and every entry has its own "
            "count; give one number in $.method.levels and $.method.depths"
            for key, is_used in hidden.items()
            if is_used
        ]


def _check_forms(config: RunConfig, problems: list[str]) -> None:
    """What devices may have in place of the run's window and base."""
    windows, bases, length = config.planner.windows, config.planner.bases, (config.model.input or (0,))[0]
    given = list(windows)
    if any(length % window or not 2 <= window < length for window in windows if window) or 0 in windows:
        problems.append(
            f"$.planner.windows: {given} given; each divides the run's window of {length} symbols and is shorter, so "
            "that a window of a device's data is cut into whole ones"
        )
    elif given != sorted(set(windows), reverse=True):
        problems.append(f"$.planner.windows: {given} given; different ones expected, the longest first")
    known, own = get_args(Precision), config.model.options.get(BASE, "int8")
    if set(bases) - set(known) or len(set(bases)) != len(bases) or own in bases:
        problems.append(
            f"$.planner.bases: {list(bases)} given; different ones of {', '.join(known)} expected, without the run's "
            f"own, {own}"
        )
