"""A run whose devices in a round lie between those of two recorded settings: what is expected between their courses.

A round's devices are drawn without replacement, so their mean update differs from that of all devices by a variance of
(N - K) / ((N - 1) K) with K of N, which is what partial participation costs in bounds on convergence (Li et al., On the
Convergence of FedAvg on Non-IID Data, 2020, theorem 3). Courses are averaged by that; docs/advise.md says how well it
held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from coordinator.advice.nearest import distance
from coordinator.advice.recorded import AdviceMap, Course, Features, Setting

ALIKE = 0.05
"""Distance up to which two settings are the same but for their devices in a round."""


def between(found: AdviceMap, setting: Setting, here: Features) -> tuple[Setting, tuple[Setting, ...]]:
    """``setting`` as it is expected with as many devices in a round as the run has; and what that is made of.

    Args:
        setting: nearest to the run.

    Returns:
        ``setting`` alone where it has as many, or where no recorded setting is on the run's other side and else alike;
        made of two, the one with fewer devices in a round comes first.
    """
    mine, wanted = drawn_variance(setting.features), drawn_variance(here)
    others = [
        other
        for other in found.settings
        if distance(replace(other.features, participants=setting.features.participants), setting.features) <= ALIKE
        and (mine - wanted) * (drawn_variance(other.features) - wanted) < 0
    ]
    if not others:
        return setting, (setting,)
    other = min(others, key=lambda one: distance(here, one.features))
    weight = (wanted - mine) / (drawn_variance(other.features) - mine)
    theirs = {course.label: course for course in other.courses}
    mixed = replace(
        setting,
        features=replace(setting.features, participants=here.participants),
        courses=tuple(
            _mixed(course, theirs[course.label], weight)
            for course in setting.courses
            if course.label in theirs and course.accuracy.keys() & theirs[course.label].accuracy.keys()
        ),
        refused={**setting.refused, **other.refused},
    )
    fewer, more = sorted((setting, other), key=lambda one: one.features.participants)
    return mixed, (fewer, more)


def drawn_variance(features: Features) -> float:
    """Of a round's mean update, in that of one device; 0 where all take part."""
    devices, drawn = features.devices, features.participants
    return (devices - drawn) / (max(1, devices - 1) * drawn)


def _mixed(mine: Course, theirs: Course, weight: float) -> Course:
    """Each seed's average over the rounds of the longer course; the shorter one is expected to stay where it ended."""
    rounds = max(mine.rounds, theirs.rounds, key=len)
    accuracy = {
        seed: [
            (1 - weight) * here + weight * there
            for here, there in zip(_at(mine, seed, rounds), _at(theirs, seed, rounds), strict=True)
        ]
        for seed in mine.accuracy
        if seed in theirs.accuracy
    }
    return replace(mine, rounds=rounds, accuracy=accuracy)


def _at(course: Course, seed: str, rounds: Sequence[int]) -> Iterator[float]:
    """A seed's accuracy after each of ``rounds``."""
    known, end = dict(zip(course.rounds, course.accuracy[seed], strict=False)), course.expected()[-1]
    return (known.get(number, end) for number in rounds)
