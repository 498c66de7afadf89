"""``[privacy]`` of a run file: what the coordinator may learn of one device's update."""

from __future__ import annotations

import msgspec

from coordinator.config.table_reader import TableReader


class PrivacyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[privacy]``: differential privacy of the sum, and sums of masked updates.

    Attributes:
        clip_norm: largest Euclidean norm of an update's difference to its weights; larger ones are scaled down to it. 0
            = no clipping. Example: ``1.0``.
        noise_multiplier: standard deviation of the Gaussian noise on the sum, as a multiple of ``clip_norm``. Example:
            ``1.1``.
        delta: delta of the (epsilon, delta) that is accounted for. Example: ``1e-6``.
        max_epsilon: the run ends before it is spent; 0 = no limit. Example: ``8.0``.
        secure_aggregation: the coordinator sees sums of masked updates alone. Example: ``true``.
        recovery_share: share of a cohort's devices whose help unmasks a sum after others have gone. Example: ``0.67``.
        reproducible: noise and draw come from the run's seed instead of the system's randomness: equal runs give equal
            models, and whoever knows the seed can take the noise off. For tests; it protects nothing. Example:
            ``true``.
        mask_range: how far one entry may move in a masked update; a device whose update moves further refuses. Example:
            ``8.0``.
        least_honest: updates in every masked sum that are of none of the devices that may collude; 0 = half of those
            that could be missing otherwise, and 1 at least (:mod:`coordinator.privacy.guarantee`). Example: ``3``.
    """

    clip_norm: float = 0.0
    noise_multiplier: float = 0.0
    delta: float = 1e-5
    max_epsilon: float = 0.0
    secure_aggregation: bool = False
    recovery_share: float = 0.67
    reproducible: bool = False
    mask_range: float = 8.0
    least_honest: int = 0


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
        least_honest=table.integer("least-honest", default.least_honest, low=0),
    )
    if privacy.noise_multiplier and not privacy.clip_norm:
        table.problem("noise-multiplier", "is a multiple of clip-norm, and there is none; give clip-norm too")
    if privacy.max_epsilon and not privacy.noise_multiplier:
        table.problem("max-epsilon", "is spent by noise-multiplier's noise, and there is none; give noise-multiplier")
    for key in ("recovery_share", "mask_range", "least_honest"):  # a canonical file spells out every key
        if getattr(privacy, key) != getattr(default, key) and not privacy.secure_aggregation:
            table.problem(key.replace("_", "-"), "belongs to secure-aggregation = true")
    if privacy.reproducible and not privacy.noise_multiplier:
        table.problem("reproducible", "is said of noise-multiplier's noise, and there is none; leave it out")
    return privacy
