"""Time and memory of an artifact's training steps on this device, each in a process of its own.

A process that the kernel kills, for its memory say, is a result: what ended it is told, and the next one can begin. The
child steps on the self-test's weights and values; it holds no local data and writes no update. Needs no torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from edge.artifact_folder import read_artifact_folder
from edge.contracts.errors import ApportionError, ConfigError
from edge.meter import peak_rss_bytes, percentile, rss_bytes
from edge.trainer_link import child_environment, exit_reason

WARM_UP_STEPS = 2
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class StepMeasurement:
    """What one process found.

    Attributes:
        predicted_bytes: the manifest's prediction of the growth above ``idle_bytes``; 0 at another batch than its own.
        idle_bytes, peak_bytes: resident memory with the runtime loaded, and the process's peak.
        heat_c: before and after, None without a sensor.
        ended: what ended the process before it was done, empty when nothing did; the figures are then 0.
    """

    artifact: str
    runtime: str
    batch: int
    threads: int
    predicted_bytes: int
    steps: int = 0
    step_ms_p50: float = 0.0
    step_ms_p95: float = 0.0
    idle_bytes: int = 0
    peak_bytes: int = 0
    heat_c: tuple[float | None, float | None] = (None, None)
    ended: str = ""


def measure_steps(
    folder: Path, *, batch: int = 0, threads: int = 1, steps: int = 20, python: str = ""
) -> StepMeasurement:
    """The artifact in ``folder``, measured in a child of the interpreter that has its runtime.

    Args:
        batch: examples per step; 0: the artifact's own.
        python: another interpreter.

    Raises:
        ConfigError: no artifact is there, its graph takes another batch only, or the interpreter does not start; also
            ArtifactCorrupt, MessageRejected.
    """
    from edge.runtimes.environments import runtime_python

    manifest, _ = read_artifact_folder(folder)
    only = manifest.program("train").batch
    if batch and only not in (None, batch):
        raise ConfigError([f"{folder}: its graph takes batches of {only}, not {batch}"], hint="export another artifact")
    batch = batch or manifest.batch
    asked = StepMeasurement(
        artifact=str(folder),
        runtime=manifest.runtime,
        batch=batch,
        threads=threads,
        predicted_bytes=manifest.cost.predicted_peak_bytes if batch == manifest.cost.batch else 0,
    )
    interpreter = python or str(runtime_python(manifest.runtime))
    try:
        done = subprocess.run(
            [interpreter, "-m", "edge.step_measurement", str(folder), str(batch), str(threads), str(steps)],
            capture_output=True,
            text=True,
            env=child_environment(),
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise ConfigError([f"{interpreter} cannot be started ({error})"], hint="install the runtime again") from error
    except subprocess.TimeoutExpired:
        return replace(asked, ended=f"not done within {TIMEOUT_S:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return replace(asked, ended=exit_reason(done.returncode) + (f": {lines[-1][:300]}" if lines else ""))
    found = json.loads(done.stdout.splitlines()[-1])
    return replace(asked, **{**found, "heat_c": tuple(found["heat_c"])})


def main(arguments: list[str]) -> int:
    """The child: measure and print one line."""
    from edge.runtimes import runtime
    from edge.self_test import load_self_test
    from profiles.probe import heat_and_charge

    folder, (batch, threads, steps) = Path(arguments[0]), map(int, arguments[1:])
    manifest, paths = read_artifact_folder(folder)
    chosen = runtime(manifest.runtime)
    chosen.version()  # some runtimes load their library only now
    idle, before = rss_bytes(), heat_and_charge()[0]
    session = chosen.load(manifest, paths, threads=threads)
    fed = load_self_test(session, manifest, batch=batch)
    taken: list[float] = []
    for _ in range(WARM_UP_STEPS + steps):
        started = time.perf_counter()
        session.run("train", fed)
        taken.append(1000 * (time.perf_counter() - started))
    found = {
        "steps": steps,
        "step_ms_p50": round(percentile(taken[WARM_UP_STEPS:], 0.5), 3),
        "step_ms_p95": round(percentile(taken[WARM_UP_STEPS:], 0.95), 3),
        "idle_bytes": idle,
        "peak_bytes": peak_rss_bytes(),
        "heat_c": (before, heat_and_charge()[0]),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ApportionError as problem:
        print(f"{problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
