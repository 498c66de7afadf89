"""Time and memory of an artifact's training steps on this device, each in a process of its own.

A process that the kernel kills, for its memory say, is a result: what ended it is told, and the next one can begin. The
child is a trainer with random examples (:mod:`edge.measuring.child`); nothing of the device's own data is read.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge.contracts.errors import ConfigError, DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.measuring.watch import Watched, watch
from edge.runtimes.environments import runtime_python
from edge.supervisor.trainer_link import child_environment, exit_reason
from edge.training.artifact_folder import read_artifact_folder

MB = 2**20
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class StepMeasurement:
    """What one process found.

    Attributes:
        threads: that steps ran on, no more than the runtime uses.
        predicted_bytes: the manifest's prediction of the growth above ``idle_bytes``; 0 at another batch than its own.
        steps: that were timed.
        idle_bytes, peak_bytes: resident memory with runtime and examples loaded, and the process's peak.
        cpu_share: processor time per thread and second of the timed steps; well below 1, others used the processors.
        cpu_ms_p50: processor time of a step, of all its threads.
        heat_c, heat_c_per_min: before and after, and the drift in between; None without a sensor.
        throttling: what slowed the processor meanwhile; None where it cannot be told.
        limit_bytes: what the process was allowed, 0: no limit.
        ended: what ended the process before it was done, empty when nothing did; the figures are then 0.
        is_killed: it ended for its memory.
    """

    artifact: str
    runtime: str
    batch: int
    threads: int
    predicted_bytes: int
    runtime_version: str = ""
    steps: int = 0
    step_ms_p50: float = 0.0
    step_ms_p95: float = 0.0
    idle_bytes: int = 0
    peak_bytes: int = 0
    cpu_share: float = 0.0
    cpu_ms_p50: float = 0.0
    heat_c: tuple[float | None, float | None] = (None, None)
    heat_c_per_min: float | None = None
    throttling: tuple[str, ...] | None = None
    limit_bytes: int = 0
    ended: str = ""
    is_killed: bool = False


def measure_steps(
    folder: Path,
    *,
    batch: int = 0,
    threads: int = 1,
    steps: int = 20,
    seconds: float = 0.0,
    limit_bytes: int = 0,
    python: str = "",
    scratch: Path | None = None,
    kept: Mapping[str, int] | None = None,
) -> StepMeasurement:
    """The artifact in ``folder``, measured in a child of the interpreter that has its runtime.

    Args:
        batch: examples per step; 0: the artifact's own.
        steps, seconds: how many steps are timed, or as many (3 at least) as fit into so many seconds; 0: all of them.
        limit_bytes: of resident memory, beyond which the child is ended; 0: none but the machine's.
        python: another interpreter.
        scratch: folder for weights and examples while it takes; else the system's.
        kept: masked weight -> entries that its mask keeps; others keep all that there is room for.

    Raises:
        ConfigError: no artifact is there, its graph takes another batch only, or the interpreter does not start; also
            ArtifactCorrupt, MessageRejected.
    """
    manifest, _ = read_artifact_folder(folder)
    _check_batch(folder, manifest, batch)
    batch = batch or manifest.batch
    asked = StepMeasurement(
        artifact=str(folder),
        runtime=manifest.runtime,
        batch=batch,
        threads=threads,
        predicted_bytes=manifest.cost.predicted_peak_bytes if batch == manifest.cost.batch else 0,
        limit_bytes=limit_bytes,
    )
    interpreter = python or str(runtime_python(manifest.runtime))
    with tempfile.TemporaryDirectory(prefix="apportion-profile-", dir=scratch) as made:
        done = _child(interpreter, limit_bytes, "inputs", folder, made, batch, json.dumps(dict(kept or {})))
        if not (done.stopped or done.status):
            done = _child(interpreter, limit_bytes, "steps", folder, made, batch, threads, steps, seconds)
    asked = replace(asked, throttling=done.throttling, heat_c=_ends(done.heat), heat_c_per_min=_slope(done.heat))
    if done.stopped or done.status:
        return _ended(asked, done)
    found = json.loads(done.stdout.splitlines()[-1])
    if limit_bytes and found["peak_bytes"] > limit_bytes:
        reason = f"reached {found['peak_bytes'] / MB:.1f} MB, over its limit of {limit_bytes / MB:.0f} MB"
        return replace(asked, ended=reason, is_killed=True)
    return replace(asked, **found)


def runtime_about(name: str, python: str = "") -> tuple[str, int] | None:
    """Release of a runtime on this device and the most threads it uses (0: as many as ordered); None without it.

    Raises:
        DeviceRefused: the process that looks was killed, so that nothing is known.
    """
    try:
        done = _child(python or str(runtime_python(name)), 0, "about", name)
    except ConfigError:
        return None
    if done.stopped or done.status < 0:
        raise DeviceRefused(
            f"the process that looks for {name} was ended, {done.stopped or exit_reason(done.status)}, before it could "
            "say whether it is here; free memory (the kernel's log names what was killed) and measure again"
        )
    if done.status:
        return None
    told = json.loads(done.stdout.splitlines()[-1])
    return str(told["version"]), int(told["max_threads"])


def _check_batch(folder: Path, manifest: ArtifactManifest, batch: int) -> None:
    only = manifest.batch if manifest.micro_batches > 1 else manifest.program("train").batch
    if batch and only not in (None, batch):
        raise ConfigError([f"{folder}: its graph takes batches of {only}, not {batch}"], hint="export another artifact")


def _child(python: str, limit_bytes: int, *words: object) -> Watched:
    command = [python, "-m", "edge.measuring.child", *map(str, words), str(limit_bytes), str(os.getpid())]
    try:
        return watch(command, env=child_environment(), limit_bytes=limit_bytes, timeout_s=TIMEOUT_S)
    except OSError as error:
        raise ConfigError([f"{python} cannot be started ({error})"], hint="install the runtime again") from error


def _ends(heat: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    return (heat[0][1], heat[-1][1]) if heat else (None, None)


def _slope(heat: Sequence[tuple[float, float]]) -> float | None:
    """Degrees per minute, the line through all readings; None with less than two of them."""
    count = len(heat)
    if count < 2:
        return None
    at, mean = sum(t for t, _ in heat) / count, sum(c for _, c in heat) / count
    spread = sum((t - at) ** 2 for t, _ in heat)
    return None if spread == 0 else 60 * sum((t - at) * (c - mean) for t, c in heat) / spread


def _ended(asked: StepMeasurement, done: Watched) -> StepMeasurement:
    lines = done.stderr.strip().splitlines()
    last = f": {lines[-1][:300]}" if lines else ""
    if done.stopped:
        return replace(asked, ended=done.stopped, is_killed=done.stopped.startswith("killed"))
    if done.is_out_of_memory and asked.limit_bytes:
        return replace(asked, ended=f"refused memory at its limit of {asked.limit_bytes / MB:.0f} MB", is_killed=True)
    reached = f" at {done.peak_bytes / MB:.0f} MB" if done.peak_bytes and done.status < 0 else ""
    is_killed = done.is_out_of_memory or done.status == -9
    return replace(asked, ended=exit_reason(done.status) + reached + last, is_killed=is_killed)
