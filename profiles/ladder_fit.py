"""What a climbed ladder says of a device: its lines of memory and time, each with its errors.

Needs NumPy through :mod:`profiles.fit`, so no supervisor imports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from profiles.device import StepLine
from profiles.fit import FitImpossible
from profiles.latency import WorkSample, WorkTime, fit_work_time
from profiles.measured_lines import MeasuredLines
from profiles.memory_fit import MemoryFit, fit_memory
from profiles.step_work import StepWork

K = TypeVar("K")


@dataclass(frozen=True)
class LadderPoint:
    """One measured setting.

    Attributes:
        shape: model and cut.
        graph_bytes: size of the step's graph; 0: not known.
        idle_bytes, grown_bytes: a trainer's resident memory before the artifact, and its peak above that.
        step_ms: with one thread that had the processor to itself, or the processor time.
    """

    shape: str
    runtime: str
    batch: int
    threads: int
    macs: int
    live_bytes: int
    predicted_bytes: int
    idle_bytes: int
    grown_bytes: int
    step_ms: float
    parameters: int = 0
    graph_bytes: int = 0
    work: StepWork | None = None


@dataclass(frozen=True)
class LadderFits:
    """Everything that could be fitted.

    Attributes:
        lines: for the device's profile.
        steps: (runtime, threads) -> time by work.
        problems: what could not be fitted, and why.
    """

    lines: MeasuredLines
    memory: Mapping[str, MemoryFit]
    steps: Mapping[tuple[str, int], WorkTime]
    problems: tuple[str, ...]


def fit_ladder(points: Sequence[LadderPoint], *, now: float | None = None) -> LadderFits:
    """The lines of ``points``; what they do not determine is left out and told."""
    measured_at = time.time() if now is None else now
    problems: list[str] = []
    memory: dict[str, MemoryFit] = {}
    steps: dict[tuple[str, int], WorkTime] = {}
    for runtime, own in _grouped(points, lambda point: point.runtime):
        try:
            samples = [(point.predicted_bytes, point.grown_bytes) for point in own]
            memory[runtime] = fit_memory(samples, [point.graph_bytes for point in own])
        except FitImpossible as error:
            problems.append(f"memory on {runtime}: {error}")
    for (runtime, threads), own in _grouped(points, lambda point: (point.runtime, point.threads)):
        try:
            steps[runtime, threads] = fit_work_time([_work(point) for point in own])
        except FitImpossible as error:
            problems.append(f"step times on {runtime}, {threads} threads: {error}")
    return LadderFits(_lines(memory, steps, measured_at), memory, steps, tuple(problems))


def _grouped(points: Sequence[LadderPoint], key: Callable[[LadderPoint], K]) -> list[tuple[K, list[LadderPoint]]]:
    found: dict[K, list[LadderPoint]] = {}
    for point in points:
        found.setdefault(key(point), []).append(point)
    return list(found.items())


def _work(p: LadderPoint) -> WorkSample:
    return WorkSample(p.macs, p.batch, p.live_bytes, p.step_ms, p.parameters, p.graph_bytes, p.work)


def _lines(
    memory: Mapping[str, MemoryFit], steps: Mapping[tuple[str, int], WorkTime], measured_at: float
) -> MeasuredLines:
    step_lines: dict[str, tuple[StepLine, ...]] = {}
    for (runtime, threads), found in sorted(steps.items()):
        line = found.line(threads, measured_at=measured_at)
        step_lines[runtime] = (*step_lines.get(runtime, ()), line)
    return MeasuredLines(
        memory_lines={runtime: found.line(measured_at=measured_at) for runtime, found in memory.items()},
        step_lines=step_lines,
    )
