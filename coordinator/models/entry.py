"""One line of the models' registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelEntry:
    """How a model is built, and what it takes by default.

    Attributes:
        target: ``module:function`` that builds the module; imported when first built.
        input_shape: canonical shape of one example, batch dimension not included.
        classes: canonical number of classes.
        layout: how local data becomes the input, as in ``InputSpec``.
        vocabulary: number of symbols of a ``tokens`` input.
    """

    target: str
    input_shape: tuple[int, ...]
    classes: int
    layout: Literal["features", "chw", "tokens"] = "chw"
    vocabulary: int = 0
