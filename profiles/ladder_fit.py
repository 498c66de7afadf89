"""What a climbed ladder says of a device: its lines of memory and time, each with its errors, on shapes held out too.

Needs NumPy through :mod:`profiles.fit`, so no supervisor imports it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from profiles.device import StepLine
from profiles.fit import FitImpossible
from profiles.latency import StepSample, StepTime, WorkSample, WorkTime, fit_step_time, fit_work_time
from profiles.measured_lines import MeasuredLines
from profiles.memory_check import PeakErrors, PeakPoint, held_out_errors
from profiles.memory_fit import MemoryFit, fit_memory
from profiles.step_work import StepWork

K = TypeVar("K")


@dataclass(frozen=True)
class LadderPoint:
    """One measured setting.

    Attributes:
        shape: model and cut, held out together with all its batches.
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
class TimeErrors:
    """Of step times of shapes that the fit had not seen, relative to the measured ones."""

    points: int
    median: float
    worst: float


@dataclass(frozen=True)
class MemoryResult:
    """The line of a runtime, and what it gives for shapes it was not fitted on; None where there are too few."""

    fit: MemoryFit
    held_out: PeakErrors | None


@dataclass(frozen=True)
class TimeResult:
    """The line of a runtime with one number of threads, and its errors as of :class:`MemoryResult`."""

    fit: WorkTime
    held_out: TimeErrors | None


@dataclass(frozen=True)
class LadderFits:
    """Everything that could be fitted.

    Attributes:
        lines: for the device's profile.
        steps: (runtime, threads) -> time by work.
        shapes: (runtime, shape) -> time by batch and threads, of shapes with enough settings.
        problems: what could not be fitted, and why.
    """

    lines: MeasuredLines
    memory: Mapping[str, MemoryResult]
    steps: Mapping[tuple[str, int], TimeResult]
    shapes: Mapping[tuple[str, str], StepTime]
    problems: tuple[str, ...]


def fit_ladder(points: Sequence[LadderPoint], *, now: float | None = None) -> LadderFits:
    """The lines of ``points``; what they do not determine is left out and told."""
    measured_at = time.time() if now is None else now
    problems: list[str] = []
    memory: dict[str, MemoryResult] = {}
    steps: dict[tuple[str, int], TimeResult] = {}
    shapes: dict[tuple[str, str], StepTime] = {}
    for runtime, own in _grouped(points, lambda point: point.runtime):
        try:
            memory[runtime] = _memory(runtime, own)
        except FitImpossible as error:
            problems.append(f"memory on {runtime}: {error}")
    for (runtime, threads), own in _grouped(points, lambda point: (point.runtime, point.threads)):
        try:
            steps[runtime, threads] = TimeResult(fit_work_time(_work(own)), _held_out_times(own))
        except FitImpossible as error:
            problems.append(f"step times on {runtime}, {threads} threads: {error}")
    for key, own in _grouped(points, lambda point: (point.runtime, point.shape)):
        # Two batches with one number of threads are a line; what most shapes have too few settings for is no problem.
        with contextlib.suppress(FitImpossible):
            shapes[key] = fit_step_time([StepSample(p.batch, p.threads, p.step_ms) for p in own])
    return LadderFits(_lines(memory, steps, measured_at), memory, steps, shapes, tuple(problems))


def _grouped(points: Sequence[LadderPoint], key: Callable[[LadderPoint], K]) -> list[tuple[K, list[LadderPoint]]]:
    found: dict[K, list[LadderPoint]] = {}
    for point in points:
        found.setdefault(key(point), []).append(point)
    return list(found.items())


def _memory(runtime: str, points: Sequence[LadderPoint]) -> MemoryResult:
    samples = [(point.predicted_bytes, point.grown_bytes) for point in points]
    fit = fit_memory(runtime, samples, [point.graph_bytes for point in points])
    peaks = [PeakPoint(runtime, p.shape, p.idle_bytes, p.predicted_bytes, p.grown_bytes, p.graph_bytes) for p in points]
    try:
        return MemoryResult(fit, held_out_errors(peaks))
    except FitImpossible:
        return MemoryResult(fit, None)


def _work(points: Sequence[LadderPoint]) -> list[WorkSample]:
    return [WorkSample(p.macs, p.batch, p.live_bytes, p.step_ms, p.parameters, p.graph_bytes, p.work) for p in points]


def _held_out_times(points: Sequence[LadderPoint]) -> TimeErrors | None:
    """Every shape predicted from the others; None when that cannot be done for one of them."""
    errors = []
    for shape, own in _grouped(points, lambda point: point.shape):
        try:
            model = fit_work_time(_work([point for point in points if point.shape != shape]))
        except FitImpossible:
            return None
        errors += [abs(_predicted_ms(model, point) / point.step_ms - 1.0) for point in own]
    return TimeErrors(len(errors), statistics.median(errors), max(errors))


def _predicted_ms(model: WorkTime, p: LadderPoint) -> float:
    return model.step_ms(
        macs=p.macs,
        batch=p.batch,
        moved_bytes=p.live_bytes,
        parameters=p.parameters,
        graph_bytes=p.graph_bytes,
        work=p.work,
    )


def _lines(
    memory: Mapping[str, MemoryResult], steps: Mapping[tuple[str, int], TimeResult], measured_at: float
) -> MeasuredLines:
    step_lines: dict[str, tuple[StepLine, ...]] = {}
    for (runtime, threads), found in sorted(steps.items()):
        line = found.fit.line(threads, measured_at=measured_at)
        step_lines[runtime] = (*step_lines.get(runtime, ()), line)
    return MeasuredLines(
        memory_lines={runtime: found.fit.line(measured_at=measured_at) for runtime, found in memory.items()},
        step_lines=step_lines,
    )
