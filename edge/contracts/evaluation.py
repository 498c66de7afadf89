"""Scores on a device's own held-out share: what an order asks for, and the sums that are reported.

Sums alone leave a device, never a score of one example: a share of too few examples is not scored at all.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from profiles.bounds import AFew, Examples, Name, Result

ABILITY = "held-out-1"
"""What a device that keeps examples out of its training and scores on them says in its hello."""
OPTIONAL = ("sum:questions", "sum:choice_hits", "sum:choice_mean_hits")
"""Sums that devices with questions report beside those of the program: how many, and how many they are right in."""
FEWEST = 5
"""Examples below which a device tells nothing but their number, whatever an order says."""


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a device's examples that is never trained on, drawn as :mod:`edge.training.held_out` says.

    Attributes:
        share: of the examples, above 0 and at most 0.5.
        seed: of the draw; the same in every order of a run.
        least: examples in the share from which on it is scored.
        program: what scores the received model before the first step; empty: nothing does.
        tuned: names of tensors that the device keeps for itself when the order's steps have lowered the loss on the
            share, which is then scored once more; empty: the steps are no fine-tuning.
    """

    share: float
    seed: int
    least: int
    program: str = ""
    tuned: tuple[str, ...] = ()


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What a model came to on a held-out share.

    Attributes:
        examples: in the share.
        targets: values that were predicted, one an example unless an example has several.
        sums: name -> sum over the share of every scalar that the program gives, and over a device's questions of those
            in :data:`OPTIONAL`; empty: the share has too few examples.
        tuned: the same after fine-tuning; empty: there was none.
        kept: whether the device keeps what it fine-tuned.
    """

    examples: Examples
    targets: Examples = 0
    sums: Annotated[dict[Name, Result], AFew] = {}
    tuned: Annotated[dict[Name, Result], AFew] = {}
    kept: bool = False
