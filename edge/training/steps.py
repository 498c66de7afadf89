"""An order as steps of a session: which program, which batch, which scalars; and what the steps amounted to.

Generic by construction: inputs are fed by their role, everything a method wanted is inside the graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.packing import KEPT, MASK, kept_values
from edge.contracts.plan import WorkOrder
from edge.contracts.streams import drawn_value
from edge.contracts.tensors import FEATURES, TensorSpec, concrete_shape
from edge.runtimes.base import Session
from edge.runtimes.micro_batches import run_step, step_programs
from edge.system.meter import percentile
from edge.training.batches import BatchOrder, Examples
from edge.training.records import entry
from edge.training.task_tensors import INPUT, TARGET, array_name

if TYPE_CHECKING:
    from edge.training.feature_cache.record_file import RecordFile

STATS_MOMENTUM = "stats_momentum"
"""The hyper input that makes a running mean of the steps so far: 1 / (step + 1)."""

_METRIC_NAMES = {"correct": "accuracy"}


@dataclass(frozen=True)
class Outcome:
    """What the steps of one order amounted to; losses and metrics are means."""

    steps: int
    loss: float
    metrics: dict[str, float]
    step_ms_p50: float
    step_ms_p95: float
    step_cpu_ms_p50: float = 0.0  # processor time, of all threads together


def train(
    session: Session,
    manifest: ArtifactManifest,
    order: WorkOrder,
    examples: Examples,
    *,
    progress: Callable[[int, int, float], None] = lambda step, total, loss: None,
    kept_features: RecordFile | None = None,
) -> Outcome:
    """Run ``order`` on a session whose state is already loaded.

    Args:
        progress: called after every step with (steps done, steps in all, loss).
        kept_features: where features of frozen blocks are kept between steps; None: each step computes its own.

    Raises:
        DeviceRefused: an order this artifact cannot carry out, or a step the runtime could not execute.
    """
    plan = BatchOrder(len(examples), order.batch, order.last_batch, order.data_seed)
    turns = order.schedule.turns
    count = plan.total(order.schedule)
    total = _steps(count, [turn.advance_batch for turn in turns])
    feeders = {turn.program: Feeder(manifest, turn.program, order, examples) for turn in turns}
    reads_features = any(feeder.reads_features for feeder in feeders.values())
    source = None
    if reads_features:
        from edge.training.feature_cache.source import FeatureSource  # most trainers never read one

        source = FeatureSource(session, manifest, kept_features)
    means = _Means(manifest)
    step_ms: list[float] = []
    step_cpu_ms: list[float] = []
    step = 0
    for number, indices in enumerate(plan.batches(count)):
        started, cpu_started = time.perf_counter(), time.process_time()
        x, y = examples.batch(indices, plan.augment_seed(number))
        features = source.batch(examples.places(indices), x) if source else None
        while True:
            turn = turns[step % len(turns)]
            values = run_step(session, manifest, turn.program, feeders[turn.program].feeds(x, y, step, features))
            finished, cpu_finished = time.perf_counter(), time.process_time()
            step_ms.append((finished - started) * 1000)
            step_cpu_ms.append((cpu_finished - cpu_started) * 1000)
            started, cpu_started = finished, cpu_finished
            step += 1
            means.add(values, targets=y.size)
            progress(step, total, values.get("loss", float("nan")))
            if turn.advance_batch:
                break
    return Outcome(
        steps=step,
        loss=means.of("loss"),
        metrics=means.metrics(),
        step_ms_p50=percentile(step_ms, 0.50),
        step_ms_p95=percentile(step_ms, 0.95),
        step_cpu_ms_p50=percentile(step_cpu_ms, 0.50),
    )


def uploaded(session: Session, name: str) -> np.ndarray:
    """What an update holds as ``name``: a tensor's present value, or the kept entries of a masked one."""
    if not name.endswith(KEPT):
        return session.read(name)
    base = name.removesuffix(KEPT)
    if session.holds_kept(base):
        return session.read(name)
    return kept_values(session.read(base), session.read(base + MASK))


class Feeder:
    """Every fed input of one program's steps, by role; checked once before the first step.

    Attributes:
        reads_features: whether the program reads features in place of the input.
    """

    def __init__(self, manifest: ArtifactManifest, name: str, order: WorkOrder, examples: Examples) -> None:
        programs = step_programs(manifest, name)
        self._program = program = programs[0]
        self._batch = program.batch and program.batch * (manifest.micro_batches if len(programs) > 1 else 1)
        specs = [manifest.tensor(name) for name in dict.fromkeys(n for p in programs for n in p.inputs)]
        self._batch_tensors = {spec.name: array_name(spec) for spec in specs if spec.role in ("input", "target")}
        self.reads_features = any(spec.role == "features" for spec in specs)
        unknown = sorted(self._batch_tensors.keys() - {INPUT, TARGET})
        if unknown and not manifest.task:
            raise DeviceRefused(
                f"program '{program.name}' takes {unknown} beside input and target and says of no task what they are; "
                "export it again"
            )
        self._data_seed = order.data_seed
        self._draws = [spec for spec in specs if spec.role == "draw"]
        for spec in self._draws:
            if spec.dtype not in ("bool", "float32"):
                raise DeviceRefused(
                    f"program '{program.name}' takes draw '{spec.name}' of {spec.dtype}, this agent draws bool and "
                    "float32; update it"
                )
        self._fixed: dict[str, np.ndarray] = dict.fromkeys(_names(specs, "label_mask"), examples.label_mask())
        self._counted: list[TensorSpec] = []
        for spec in specs:
            if spec.role == "hyper" and spec.name == STATS_MOMENTUM:
                self._counted.append(spec)
            elif spec.role == "hyper":
                if spec.name not in order.hyper:
                    raise DeviceRefused(
                        f"program '{program.name}' needs hyper-parameter '{spec.name}', the order gives "
                        f"{sorted(order.hyper)}; order it"
                    )
                self._fixed[spec.name] = scalar(spec, order.hyper[spec.name])

    def feeds(
        self, x: np.ndarray, y: np.ndarray, step: int, features: np.ndarray | None = None
    ) -> Mapping[str, np.ndarray]:
        """The inputs of step ``step`` on one batch."""
        if self._batch not in (None, len(x)):
            raise DeviceRefused(
                f"program '{self._program.name}' takes batches of {self._batch}, this one has {len(x)}; "
                "order last-batch drop or wrap"
            )
        feeds = dict(self._fixed)
        for name, array in self._batch_tensors.items():
            feeds[name] = x if name == INPUT else entry(y, array)
        if self.reads_features and features is not None:
            feeds[FEATURES] = features
        for spec in self._counted:
            feeds[spec.name] = scalar(spec, 1.0 / (step + 1))
        for spec in self._draws:
            feeds[spec.name] = drawn_value(spec, self._data_seed, step, len(x))
        return feeds


class _Means:
    """Means over steps. An integer metric counts targets, so its mean is per target; others are per step."""

    def __init__(self, manifest: ArtifactManifest) -> None:
        self._counts = {s.name for s in manifest.specs("metric") if np.dtype(s.dtype).kind in "iu"}
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, values: Mapping[str, float], *, targets: int) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._weights[name] = self._weights.get(name, 0.0) + (targets if name in self._counts else 1)

    def of(self, name: str) -> float:
        return self._sums.get(name, 0.0) / self._weights.get(name, 1.0)

    def metrics(self) -> dict[str, float]:
        return {_METRIC_NAMES.get(name, name): self.of(name) for name in sorted(self._sums) if name != "loss"}


def scalar(spec: TensorSpec, value: float) -> np.ndarray:
    """``value`` in the shape ([] or [1]) and dtype of a ``hyper`` input."""
    return np.full(concrete_shape(spec), value, spec.dtype)


def _names(specs: list[TensorSpec], role: str) -> list[str]:
    return [spec.name for spec in specs if spec.role == role]


def _steps(batches: int, advances: list[bool]) -> int:
    """Turns taken until ``batches`` batches are used up."""
    cycles, rest = divmod(batches, sum(advances))
    steps = cycles * len(advances)
    if rest == 0:
        # The last cycle ends with its last advancing turn; what follows it would begin a batch that does not come.
        return steps - advances[::-1].index(True)
    for index, advance in enumerate(advances):
        rest -= advance
        if rest == 0:
            return steps + index + 1
    return steps
