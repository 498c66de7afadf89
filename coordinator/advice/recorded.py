"""The map: how accuracy went by round, for methods and levels on a few settings, as ``map.json`` beside it holds it.

Accuracy by round depends neither on a device's link nor on its processor, so these are not in it. The file is made by
``python -m benchmarks.advice_map``; nothing in it is written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from edge.contracts.errors import ConfigError

SCHEMA = "apportion.advice-map/1"
PACKAGED = Path(__file__).with_name("map.json")


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run decides how fast a method learns in it, as far as the map knows.

    Attributes:
        input: shape of one example.
        convolutional: the model has a convolution.
        parameters: of the whole model.
        devices, participants: in all, and in a round.
        examples: of a device, mean.
        skew: mean total variation distance between a device's classes and all devices', 0 (alike) to below 1.
        steps: of a device with the mean number of examples, in a round.
    """

    input: tuple[int, ...]
    convolutional: bool
    classes: int
    parameters: int
    devices: int
    participants: int
    examples: float
    skew: float
    steps: int


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One method at one level, which all devices held.

    Attributes:
        options: of ``[method]``.
        rounds: after which the model was scored, counted from 1.
        accuracy: seed -> accuracy after each of them; a seed that ended early has fewer.
    """

    label: str
    method: str
    options: dict[str, Any]
    rounds: list[int]
    accuracy: dict[str, list[float]]

    def mean(self) -> list[float]:
        """Mean over seeds after each scored round that all of them have."""
        return [sum(values) / len(values) for values in zip(*self.accuracy.values(), strict=False)]

    def expected(self) -> list[float]:
        """The course nearest to the mean, in squares, that never falls: one lucky round is no arrival.

        Where few devices take part in a round, accuracy jumps from one to the next, and the first of many rounds that
        happens to be at a target says more of chance than of the method.
        """
        from sklearn.isotonic import isotonic_regression

        return [float(value) for value in isotonic_regression(self.mean())]

    def rounds_to(self, target: float) -> int | None:
        """The first scored round after which ``target`` is expected; None: it is not."""
        reached = (after for after, value in zip(self.rounds, self.expected(), strict=False) if value >= target - 1e-9)
        return next(reached, None)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One federation on which every method was run.

    Attributes:
        file: run file, from the repository's root.
        source: page or command that the accuracies are from, with its date.
        refused: label -> why the method does not go with the model.
    """

    name: str
    file: str
    source: str
    features: Features
    courses: tuple[Course, ...]
    refused: dict[str, str] = {}

    def seeds(self) -> int:
        """Of the course that has fewest."""
        return min(len(course.accuracy) for course in self.courses)

    def best(self) -> float:
        """The best accuracy that is expected of any method after any round."""
        return max(value for course in self.courses for value in course.expected())


class AdviceMap(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded."""

    schema: str
    settings: tuple[Setting, ...]


def read_map(path: Path = PACKAGED) -> AdviceMap:
    """The map in ``path``.

    Raises:
        ConfigError: there is none, or it is of another version.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=AdviceMap)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError([f"--map: {path} cannot be read ({error}); benchmarks.advice_map makes one"]) from error
    if found.schema != SCHEMA:
        raise ConfigError([f"--map: {path} has schema '{found.schema}', this release reads '{SCHEMA}'; make it anew"])
    if not found.settings:
        raise ConfigError([f"--map: {path} has no setting; python -m benchmarks.advice_map records them"])
    return found
