"""A step that begins at features as the parity gate runs it: from the input, through both of its programs.

So it is held to torch over the whole network, like every other step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from edge.contracts.errors import ParityError
from edge.contracts.tensors import FEATURES
from edge.runtimes.micro_batches import TRAIN
from export.training_step import INPUT

if TYPE_CHECKING:
    from export.training_step import StepSpec

_ALONE = 1e-4
"""Of the largest feature: what the sums of a kernel differ by with the number of examples; measured, below 1e-6."""

Opened = TypeVar("Opened")


class _Run(Protocol):
    """As :class:`export.micro_batch_run.ProgramRun`."""

    @property
    def outputs(self) -> Sequence[str]: ...

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class FromFeatures:
    """Two programs as the gate takes them, each as it takes others.

    Attributes:
        most: examples at a time that ``features`` is made for.
    """

    features: Any
    step: Any
    most: int


def begun_at_features(programs: dict[str, Opened], spec: StepSpec) -> dict[str, Opened | FromFeatures]:
    """``programs`` with ``train`` behind ``features``, where there is that."""
    opened: dict[str, Opened | FromFeatures] = dict(programs)
    if FEATURES in programs:
        opened[TRAIN] = FromFeatures(programs[FEATURES], programs[TRAIN], spec.batch // spec.micro_batches)
    return opened


class FeatureRun:
    """Implements :class:`export.micro_batch_run.ProgramRun`: the step on what ``features`` gives."""

    def __init__(self, features: _Run, step: _Run, most: int) -> None:
        self._features, self._step, self._most = features, step, most
        self.outputs = list(step.outputs)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As :meth:`export.micro_batch_run.ProgramRun.run`."""
        x = feeds[INPUT]
        parts = [
            np.array(self._features.run({**feeds, INPUT: x[start : start + self._most]})[FEATURES])
            for start in range(0, len(x), self._most)
        ]
        return self._step.run({**feeds, FEATURES: np.concatenate(parts)})


def check_alone(features: _Run, values: Mapping[str, np.ndarray], most: int) -> None:
    """Check that an example's features are its own: the same beside others and without them.

    Args:
        most: as of :class:`FromFeatures`.

    Raises:
        ParityError: they are not, and what a device keeps of one batch would be wrong in another.
    """
    x = values[INPUT][:most]
    whole = np.array(features.run({**values, INPUT: x})[FEATURES])
    for row in {0, len(x) - 1}:
        alone = features.run({**values, INPUT: np.ascontiguousarray(x[row : row + 1])})[FEATURES]
        off = float(np.abs(whole[row] - alone[0]).max())
        if not off <= _ALONE * float(np.abs(whole).max()):
            raise ParityError(
                f"program features: what it gives for an example is off by {off:.2e} without the others of its batch; "
                "a frozen layer mixes examples",
                hint="leave [training] cached-features out",
            )
