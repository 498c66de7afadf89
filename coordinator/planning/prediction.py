"""What one step would need on one device: memory in its parts, time, and where each figure is from.

``peak = supervisor idle + transfer + trainer idle + growth + margin``. Idle sizes are the device's own. Growth is what
the artifact's manifest predicts, through the line that was measured on the device for the runtime where there is one,
and corrected by what devices measured while training. The margin is what is kept free: the run's headroom of the
growth, or as much as the worst point that the line was fitted on needed, or steps in that form, whichever is most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.submodels.values import Level
from edge.contracts.errors import PlanError
from edge.contracts.manifest import Cost
from edge.runtimes import traits_of
from export.forms.step_form import PLAIN, StepForm
from profiles.device import DeviceProfile, StepLine
from profiles.memory import SUPERVISOR_TRANSFER_BYTES, predict_process_peak

MB = 2**20
"""Memory is given and shown in megabytes of 2^20 bytes, as systems report it; traffic in those of 10^6."""

RECOMPUTATION = 4 / 3
"""Work of a step that computes its forward pass twice, a backward pass taken for two forward ones."""

NARROWING = 1.1
"""The same of a step that keeps activations in float16. Source: measured, 0.94 to 1.08 on ResNet-20, x86-64;
docs/measurements/2026-11-29-float16-activations.md."""

MICRO_BATCH_OVERHEAD = 0.02
"""Time of a further micro-batch relative to the step, where nothing was measured: to order forms by, not to promise."""

MICRO_BATCH_MARGIN, RECOMPUTATION_MARGIN, BOTH_MARGIN, NARROWING_MARGIN = 0.15, 0.1, 0.25, 0.15
"""Of a step's growth: how much more than predicted steps in these forms took at most. Source: measured, ResNet-20,
docs/measurements/2026-11-20-step-forms.md and, in float16, 2026-11-29-float16-activations.md."""


@dataclass(frozen=True)
class Prediction:
    """What one level, in one form, for one runtime, is expected to need on one device.

    Attributes:
        supervisor_bytes: the idle supervisor and what it grows by while it moves blocks.
        trainer_bytes: the idle trainer with its runtime and local data.
        predicted_bytes: the trainer's growth as the artifact's manifest says.
        growth_bytes: the growth to expect on this device: through its line, corrected.
        margin_bytes: kept free beyond that.
        correction: measured over predicted growth, 1.0 where nothing was measured; in ``growth_bytes`` already.
        threads: of the step.
        step_ms: predicted time of a step, None where the device has no line for it.
        growth_source, threads_source: where these figures are from, in words.
    """

    level: Level
    runtime: str
    form: StepForm
    supervisor_bytes: int
    trainer_bytes: int
    predicted_bytes: int
    growth_bytes: int
    margin_bytes: int
    correction: float = 1.0
    threads: int = 1
    step_ms: float | None = None
    growth_source: str = "the artifact's graph"
    threads_source: str = "[runtime] threads"

    @property
    def idle_bytes(self) -> int:
        """Both processes before the artifact."""
        return self.supervisor_bytes + self.trainer_bytes

    @property
    def expected_bytes(self) -> int:
        """What both processes are expected to reach."""
        return self.idle_bytes + self.growth_bytes

    @property
    def peak_bytes(self) -> int:
        """What is held against the device's limit: what is expected and the margin."""
        return self.expected_bytes + self.margin_bytes

    def describe(self) -> str:
        """One line for people."""
        corrected = "" if self.correction == 1.0 else f" (x {self.correction:.2f} measured)"
        form = "" if self.form == PLAIN else f", {self.form.name}"
        time = "" if self.step_ms is None else f", {self.step_ms:.0f} ms a step"
        threads = "" if self.threads == 1 else f", {self.threads} threads"
        return (
            f"{self.level.name}: {self.peak_bytes / MB:.1f} MB = idle {self.idle_bytes / MB:.1f} "
            f"+ step {self.growth_bytes / MB:.1f}{corrected} + headroom {self.margin_bytes / MB:.1f}, "
            f"on {self.runtime}{form}{threads}{time}"
        )


@dataclass(frozen=True)
class Timing:
    """Threads of a step, its time, and why so many."""

    threads: int
    step_ms: float | None
    source: str


def idle_bytes(profile: DeviceProfile, runtime: str) -> tuple[int, int]:
    """Of the supervisor, transfers included, and of the trainer with ``runtime``.

    Raises:
        PlanError: the device has not measured one of them.
    """
    trainer = profile.trainer_idle_bytes.get(runtime, 0)
    if trainer <= 0 or profile.supervisor_idle_bytes <= 0:
        known = ", ".join(sorted(profile.trainer_idle_bytes)) or "none"
        raise PlanError(
            f"device {profile.device}: no idle size for runtime '{runtime}' in its profile (has {known}); "
            "install that runtime on the device and let it say hello again"
        )
    return profile.supervisor_idle_bytes + SUPERVISOR_TRANSFER_BYTES, trainer


def expected_growth(
    profile: DeviceProfile, runtime: str, predicted_bytes: int, graph_bytes: int = 0
) -> tuple[int, int, str]:
    """The growth to expect on the device, what its worst measured point needed beyond, and where both are from."""
    line = profile.memory_lines.get(runtime)
    if line is None:
        return predicted_bytes, 0, "the artifact's graph"
    growth = line.growth_bytes(predicted_bytes, graph_bytes)
    return growth, line.missing_bytes, f"the artifact's graph, by {line.points} points measured on the device"


def predict(
    profile: DeviceProfile,
    runtime: str,
    level: Level,
    predicted_bytes: int,
    *,
    headroom: float,
    form: StepForm = PLAIN,
    correction: float = 1.0,
    timing: Timing | None = None,
    graph_bytes: int = 0,
) -> Prediction:
    """What ``level`` needs on the device of ``profile``.

    Args:
        predicted_bytes: the growth that the artifact's manifest says.
        headroom: fraction of the growth kept free, 0.05 for five percent.
        graph_bytes: size of the step's graph, as the manifest says; 0: not known.

    Raises:
        PlanError: as :func:`idle_bytes`.
    """
    supervisor, trainer = idle_bytes(profile, runtime)
    growth, missing, source = expected_growth(profile, runtime, predicted_bytes, graph_bytes)
    corrected = round(growth * correction)
    timing = timing or Timing(1, None, "[runtime] threads")
    return Prediction(
        level=level,
        runtime=runtime,
        form=form,
        supervisor_bytes=supervisor,
        trainer_bytes=trainer,
        predicted_bytes=predicted_bytes,
        growth_bytes=corrected,
        margin_bytes=max(missing, round(corrected * max(headroom, form_margin(form)))),
        correction=correction,
        threads=timing.threads,
        step_ms=timing.step_ms,
        growth_source=source,
        threads_source=timing.source,
    )


def growth_of(profile: DeviceProfile, runtime: str, measured_peak_bytes: int) -> int:
    """The trainer's growth in a measured peak of both processes; 0 when it is below what both weigh idle."""
    idle = predict_process_peak(
        supervisor_idle_bytes=profile.supervisor_idle_bytes,
        trainer_idle_bytes=profile.trainer_idle_bytes.get(runtime, 0),
        artifact_peak_bytes=0,
    )
    return max(0, measured_peak_bytes - idle)


def step_ms(line: StepLine, plain: Cost, form: StepForm) -> float:
    """A step in ``form`` on ``line``, from the cost of the plain step: micro-batches repeat what is constant."""
    start = line.start_ms(plain.graph_bytes)
    whole = line.step_ms(
        macs=plain.macs,
        batch=plain.batch,
        live_bytes=plain.live_bytes,
        parameters=plain.parameters,
        graph_bytes=plain.graph_bytes,
        work=plain.step_work,
    )
    return form.micro_batches * start + (whole - start) * _repeated(form)


def form_margin(form: StepForm) -> float:
    """The least share of its growth that a step in ``form`` is given beyond its prediction."""
    if form.micro_batches > 1:
        return BOTH_MARGIN if form.recompute else MICRO_BATCH_MARGIN
    return RECOMPUTATION_MARGIN if form.recompute else NARROWING_MARGIN if form.keep else 0.0


def slowdown(form: StepForm) -> float:
    """Time of a step in ``form`` relative to the plain one, where nothing was measured."""
    return _repeated(form) * (1 + MICRO_BATCH_OVERHEAD * (form.micro_batches - 1))


def _repeated(form: StepForm) -> float:
    """Work of a step in ``form``, micro-batches left out, relative to the plain one's."""
    return RECOMPUTATION if form.recompute else NARROWING if form.keep else 1.0


def timing(profile: DeviceProfile, runtime: str, plain: Cost, form: StepForm, *, threads: int) -> Timing:
    """Threads and time of a step on the device.

    Args:
        plain: cost of the plain step at the same level.
        threads: as the run file says; 0 = the fastest of those that were measured on the device, without any 1, or
            what is known of the runtime.
    """
    lines = profile.step_lines.get(runtime, ())
    most = min(filter(None, (profile.max_threads.get(runtime, 0), profile.cpu_count)), default=1)
    if threads:
        used = min(filter(None, (threads, profile.max_threads.get(runtime, 0))))
        found = [step_ms(line, plain, form) for line in lines if line.threads == used]
        return Timing(threads, found[0] if found else None, f"[runtime] threads = {threads}")
    usable = [(step_ms(line, plain, form), line.threads) for line in lines if line.threads <= most]
    if not usable:
        used = min(most, traits_of(runtime).unmeasured_threads)
        why = "" if used == 1 else f", and a step of {runtime} is faster on {used}"
        return Timing(used, None, f"no step times of this device{why}; see apportion profile")
    best_ms, best = min(usable)
    return Timing(best, best_ms, f"the fastest of {_listed(sorted(t for _, t in usable))} measured on the device")


def forms_of(
    batch: int, *, micro_batches: bool, recompute: bool, float16_activations: bool = False
) -> tuple[StepForm, ...]:
    """The forms to try, the one that should be fastest first: plain, then what trades time for memory."""
    counts = [2**i for i in range(1, int(math.log2(batch)) + 1) if batch % 2**i == 0] if micro_batches else []
    ways = [PLAIN, *([StepForm(recompute=True)] if recompute else [])]
    ways += [StepForm(keep="float16")] if float16_activations else []
    forms = [replace(way, micro_batches=count) for way in ways for count in (1, *counts)]
    return tuple(sorted(forms, key=lambda form: (slowdown(form), form.micro_batches)))


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers))} threads"
