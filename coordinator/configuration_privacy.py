"""``[privacy]`` of a run file: what the coordinator may learn of one device's update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.configuration_reader import TableReader
from coordinator.privacy.one_cut import ONE_CUT, refusal_of

if TYPE_CHECKING:
    from coordinator.configuration import RunConfig


class PrivacyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[privacy]``: differential privacy of the sum, and sums of masked updates.

    Attributes:
        clip_norm: largest Euclidean norm of an update's difference to its weights; larger ones are scaled down to it.
            0 = no clipping.
        noise_multiplier: standard deviation of the Gaussian noise on the sum, as a multiple of ``clip_norm``.
        delta: of the (epsilon, delta) that is accounted for.
        max_epsilon: the run ends before it is spent; 0 = no limit.
        secure_aggregation: the coordinator sees sums of masked updates alone.
        reproducible: noise and draw come from the run's seed instead of the system's randomness: equal runs give equal
            models, and whoever knows the seed can take the noise off. For tests; it protects nothing.
        mask_range: how far one entry may move in a masked update; a device whose update moves further refuses.
        recovery_share: share of a cohort's devices whose help unmasks a sum after others have gone.
    """

    clip_norm: float = 0.0
    noise_multiplier: float = 0.0
    delta: float = 1e-5
    max_epsilon: float = 0.0
    secure_aggregation: bool = False
    recovery_share: float = 0.67
    reproducible: bool = False
    mask_range: float = 8.0


def read_privacy(table: TableReader) -> PrivacyConfig:
    """The table's values."""
    default = PrivacyConfig()
    privacy = PrivacyConfig(
        clip_norm=table.number("clip-norm", default.clip_norm, low=0.0),
        noise_multiplier=table.number("noise-multiplier", default.noise_multiplier, low=0.0, high=1e6),
        delta=table.number("delta", default.delta, low=0.0, high=0.5, above_low=True),
        max_epsilon=table.number("max-epsilon", default.max_epsilon, low=0.0),
        secure_aggregation=table.flag("secure-aggregation", default.secure_aggregation),
        recovery_share=table.number("recovery-share", default.recovery_share, low=0.5, high=1.0, above_low=True),
        reproducible=table.flag("reproducible", default.reproducible),
        mask_range=table.number("mask-range", default.mask_range, low=0.0, high=1e12, above_low=True),
    )
    if privacy.noise_multiplier and not privacy.clip_norm:
        table.problem("noise-multiplier", "is a multiple of clip-norm, and there is none; give clip-norm too")
    if privacy.max_epsilon and not privacy.noise_multiplier:
        table.problem("max-epsilon", "is spent by noise-multiplier's noise, and there is none; give noise-multiplier")
    for key in ("recovery_share", "mask_range"):  # a canonical file spells out every key
        if getattr(privacy, key) != getattr(default, key) and not privacy.secure_aggregation:
            table.problem(key.replace("_", "-"), "belongs to secure-aggregation = true")
    if privacy.reproducible and not privacy.noise_multiplier:
        table.problem("reproducible", "is said of noise-multiplier's noise, and there is none; leave it out")
    return privacy


def check_privacy(config: RunConfig, problems: list[str]) -> None:
    """Add what of the run cannot go together with its ``[privacy]`` to ``problems``, each with its path."""
    privacy = config.privacy
    if privacy.secure_aggregation:
        _check_masking(config, problems)
    if not privacy.clip_norm:
        return
    if config.aggregation.mode != "synchronous":
        problems.append(
            "$.privacy.clip-norm: bounds differences to one round's weights, and buffered updates come of several; "
            'use mode = "synchronous"'
        )
    if privacy.noise_multiplier:
        _check_noise(config, problems)


def _check_masking(config: RunConfig, problems: list[str]) -> None:
    where, sees = "$.privacy.secure-aggregation", "the coordinator sees the sum alone"
    if reason := refusal_of(config.method.name):
        problems.append(f"{where}: method '{config.method.name}': {reason}; use one of {', '.join(ONE_CUT)}")
    if config.method.options.get("weight-by-examples") is False:
        problems.append(f"{where}: a masked sum is weighted by examples; leave out $.method.weight-by-examples")
    if config.aggregation.rule != "mean":
        problems.append(
            f"{where}: {sees}, $.aggregation.rule '{config.aggregation.rule}' needs each update; use 'mean'"
        )
    if config.aggregation.mode != "synchronous":
        problems.append(f'{where}: masks cancel among the devices of one round; use mode = "synchronous"')
    if config.defences.quarantine_factor:
        problems.append(f"{where}: {sees}, $.defences.quarantine-factor judges each update; leave one of them out")
    if config.updates.precision != "fp32":
        problems.append(f"{where}: masked values are whole numbers of 32 bits; leave out $.updates.precision")
    if config.cohort.size < 3:
        problems.append(f"{where}: of {config.cohort.size} devices each could tell the others' sum; $.cohort.size >= 3")


def _check_noise(config: RunConfig, problems: list[str]) -> None:
    where = "$.privacy.noise-multiplier"
    if reason := refusal_of(config.method.name):
        problems.append(f"{where}: method '{config.method.name}': {reason}; use one of {', '.join(ONE_CUT)}")
    if config.aggregation.rule != "mean":
        problems.append(
            f"{where}: is measured for a mean, and $.aggregation.rule is '{config.aggregation.rule}'; use 'mean'"
        )
    if config.defences.quarantine_factor:
        problems.append(
            f"{where}: leaving updates out by their norms makes one device's update decide over another's; leave out "
            "$.defences.quarantine-factor, clip-norm bounds every update already"
        )
