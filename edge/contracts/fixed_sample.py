"""A fixed sample of a device's examples that alone is trained on: what an order asks for."""

from __future__ import annotations

import msgspec

ABILITY = "fixed-sample-1"
"""What a device that can train on a sample of its examples says in its hello."""


class FixedSample(msgspec.Struct, frozen=True, kw_only=True):
    """So many of a device's examples, drawn as :mod:`edge.training.fixed_sample` says.

    Attributes:
        size: examples, at least 1; a device with fewer trains on all of them.
        seed: of the draw; the same in every order of a run, so that the sample is, too.
    """

    size: int
    seed: int
