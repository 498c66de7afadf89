"""Simulated rounds beside a peer's: the same models, examples, shares and steps, on the same cores, in the same run.

``python -m benchmarks.simulation_rounds mlp_digits conv2_writers resnet8_cifar10 --peer PYTHON``: PYTHON is of an
environment that has this project and ``flwr[simulation]``; without it the simulator is timed alone. The two take turns.
Seconds of a round are the median over the rounds after the first; memory is the highest sum of the processes'
proportional set sizes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from msgspec.structs import replace

from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import Precision, RunConfig
from coordinator.exporting.cut_exporter import class_names, run_input_spec
from coordinator.exporting.run_data import load_run_data
from coordinator.local_devices.data_folders import device_shares
from coordinator.run_file.loading import load_config
from edge.training.normalisation import normalised

WORKLOADS = Path(__file__).parent / "simulation"
SAMPLE_S = 0.2


@dataclass(frozen=True)
class Measured:
    """One whole run of one side.

    Attributes:
        whole_s: from the process's start to its end.
        cpu_s: of all processes, for a round; what other programs take of the cores changes it less than seconds.
        round_s: of each round after the first.
        peak_mb: of all processes together.
    """

    whole_s: float
    cpu_s: float
    round_s: list[float]
    accuracy: float
    peak_mb: float


def prepare(config: RunConfig, folder: Path, *, rounds: int, processes: int, precision: Precision) -> None:
    """Write what a peer needs: arrays as the model takes them, shares, and settings."""
    data, spec = load_run_data(config), run_input_spec(config)
    for name in ("x_train", "x_test"):
        np.save(folder / f"{name}.npy", normalised(getattr(data, name).astype(np.float32), spec))
    for name in ("y_train", "y_test"):
        np.save(folder / f"{name}.npy", getattr(data, name).astype(np.int64))
    (folder / "shares").mkdir()
    for number, rows in enumerate(device_shares(config, data, config.cohort.local_devices)):
        np.save(folder / "shares" / f"{number}.npy", np.asarray(rows, np.int64))
    training = config.training
    settings = {
        "model": config.model.build,
        "model_options": {"classes": len(class_names(config)), "input_shape": list(config.model.input)},
        "seed": config.federation.seed,
        "rounds": rounds,
        "processes": processes,
        "devices": config.cohort.local_devices,
        "size": config.cohort.size or config.cohort.local_devices,
        "epochs": training.epochs,
        "batch": training.batch,
        "last_batch": training.last_batch,
        "lr": training.lr,
        "momentum": training.momentum,
        "weight_decay": training.weight_decay,
        "eval_batch": config.evaluation.batch,
        "precision": precision,
    }
    (folder / "settings.json").write_text(json.dumps(settings))


def watched(command: list[str], log: Path, done: Callable[[], int], **variables: str) -> tuple[float, float, float]:
    """Run ``command``; (its seconds, CPU seconds of a round after the first, its processes' highest memory in MB).

    Args:
        done: rounds that are over.

    Raises:
        SystemExit: it failed.
    """
    path = os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH", "")]))
    with log.open("w") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path, **variables}
        )
        started, peak, cpu_s, ends = time.perf_counter(), 0.0, dict[int, float](), dict[int, float]()
        while child.poll() is None:
            family = descendants(child.pid)
            peak = max(peak, sum(proportional_mb(pid) for pid in family))
            cpu_s |= family
            ends.setdefault(done(), sum(cpu_s.values()))
            time.sleep(SAMPLE_S)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}:\n{log.read_text()[-3000:]}")
    first, last = min(number for number in ends if number), max(ends)
    return time.perf_counter() - started, (ends[last] - ends[first]) / max(1, last - first), peak


def descendants(root: int) -> dict[int, float]:
    """``root`` and every process below it, with the CPU seconds of each."""
    parents, seconds = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    ours, found = {root}, {root}
    while found:
        found = {pid for pid, parent in parents.items() if parent in found} - ours
        ours |= found
    return {pid: seconds[pid] for pid in ours if pid in seconds}


def proportional_mb(pid: int) -> float:
    """Proportional set size: memory that processes share counts once among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def simulated(path: Path, folder: Path, *, rounds: int, processes: int) -> Measured:
    """The simulator's run."""
    run_dir = folder / "run"
    command = [str(Path(sys.executable).with_name("apportion")), "simulate", str(path), "--rounds", str(rounds)]
    command += ["--workers", str(processes), "--run-dir", str(run_dir)]

    def rounds_over() -> list[dict[str, Any]]:
        file = run_dir / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [line for line in found if line.get("program") == "train"]

    whole_s, cpu_s, peak_mb = watched(command, folder / "apportion.log", lambda: len(rounds_over()))
    rows = rounds_over()
    accuracy = rows[-1]["evaluation"]["server"]["accuracy"]
    return Measured(whole_s, cpu_s, _between([row["at_s"] for row in rows]), accuracy, peak_mb)


def peer(python: str, folder: Path) -> Measured:
    """Flower's run."""
    log = folder / "peer.log"

    def rounds_over() -> list[dict[str, Any]]:
        lines = [line for line in log.read_text().splitlines(keepends=True) if "ROUND {" in line]
        found = [json.loads(line.partition("ROUND ")[2]) for line in lines if line.endswith("\n")]
        return [line for line in found if line["round"]]

    command = [python, "-m", "benchmarks.flower_peer"]
    whole_s, cpu_s, peak_mb = watched(command, log, lambda: len(rounds_over()), PEER_FOLDER=str(folder))
    lines = rounds_over()
    return Measured(whole_s, cpu_s, _between([line["at_s"] for line in lines]), lines[-1]["accuracy"], peak_mb)


def _between(ends: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(ends)]


@dataclass(frozen=True)
class Form:
    """What computes the simulator's steps, and in which precision steps and scores multiply."""

    runtime: str
    steps: Precision
    scores: Precision

    def of(self, config: RunConfig) -> RunConfig:
        """The run in this form."""
        steps = replace(config.simulation, runtime=self.runtime, precision=self.steps)
        return replace(config, simulation=steps, evaluation=replace(config.evaluation, precision=self.scores))


FORMS = {
    "float32": Form("torch", "float32", "float32"),
    "bfloat16": Form("torch", "bfloat16", "bfloat16"),
    "executorch": Form("executorch", "float32", "float32"),
    "executorch-and-bfloat16-scores": Form("executorch", "float32", "bfloat16"),
    "onnxruntime": Form("onnxruntime", "float32", "float32"),
}


@dataclass(frozen=True)
class Comparison:
    """What is run of a workload.

    Attributes:
        python: of the peer's environment; empty for the simulator alone.
        forms: of the simulator, names in :data:`FORMS`; a run for each in every turn.
        peer_precisions: of the peer's.
    """

    python: str
    rounds: int
    processes: int
    turns: int
    forms: tuple[str, ...]
    peer_precisions: tuple[Precision, ...]

    def run(self, path: Path) -> None:
        """Run all sides ``turns`` times in turn, and print a line of each and the ratios."""
        ours: dict[str, list[Measured]] = {form: [] for form in self.forms}
        theirs: dict[Precision, list[Measured]] = {precision: [] for precision in self.peer_precisions if self.python}
        config = load_config(path)
        for turn in range(self.turns):
            seeded = replace(config, federation=replace(config.federation, seed=config.federation.seed + turn))
            for form in self.forms:
                with tempfile.TemporaryDirectory(prefix="apportion-benchmark-") as name:
                    run_file = Path(name) / path.name
                    run_file.write_text(canonical_toml(FORMS[form].of(seeded)))
                    measured = simulated(run_file, Path(name), rounds=self.rounds, processes=self.processes)
                    ours[form].append(measured)
                    _say(path, f"apportion {form}", [measured], self.rounds)
            for precision in self.peer_precisions if self.python else ():
                with tempfile.TemporaryDirectory(prefix="apportion-benchmark-") as name:
                    folder = Path(name)
                    prepare(seeded, folder, rounds=self.rounds, processes=self.processes, precision=precision)
                    theirs[precision].append(peer(self.python, folder))
                    _say(path, f"flower {precision}", theirs[precision][-1:], self.rounds)
        sides = {f"apportion {form}": runs for form, runs in ours.items()}
        sides |= {f"flower {precision}": runs for precision, runs in theirs.items()}
        for side, runs in sides.items() if self.turns > 1 else ():
            _say(path, f"{side}, all turns", runs, self.rounds)
        for (mine, runs), (other, peers) in itertools.product(ours.items(), theirs.items()):
            print(
                f"{path.stem}, {mine} beside the peer's {other}: {round_s(peers) / round_s(runs):.2f} times the peer's "
                f"rounds per second, {cpu_s(peers) / cpu_s(runs):.2f} times those per second of CPU, "
                f"{max(r.peak_mb for r in runs) / max(r.peak_mb for r in peers):.2f} of its memory",
                flush=True,
            )


def _say(path: Path, side: str, runs: list[Measured], rounds: int) -> None:
    scores = [run.accuracy for run in runs]
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    print(
        f"{path.stem} {side}: {round_s(runs):.3f} s a round, {cpu_s(runs):.3f} s of CPU; all {rounds} rounds "
        f"{statistics.median(run.whole_s for run in runs):.1f} s; {max(run.peak_mb for run in runs):.0f} MB; "
        f"accuracy {statistics.mean(scores):.4f} +- {spread:.4f}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def round_s(runs: list[Measured]) -> float:
    """Median seconds of a round."""
    return statistics.median(seconds for run in runs for seconds in run.round_s)


def cpu_s(runs: list[Measured]) -> float:
    """Median CPU seconds of a round."""
    return statistics.median(run.cpu_s for run in runs)


def main() -> None:
    """Print a line of each side and of each ratio per workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=sorted(path.stem for path in WORKLOADS.glob("*.toml")))
    parser.add_argument("--peer", default="", help="python of an environment with this project and flwr[simulation]")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    precisions = get_args(Precision)
    one: dict[str, Any] = {"nargs": "+", "default": ["float32"]}
    parser.add_argument("--forms", help="of the simulator, a run for each", choices=list(FORMS), **one)
    parser.add_argument("--peer-precisions", help="bfloat16 is torch.autocast", choices=precisions, **one)
    parser.add_argument("--turns", type=int, default=3, help="runs of each side, each with a seed of its own")
    arguments = parser.parse_args()
    comparison = Comparison(
        arguments.peer,
        arguments.rounds,
        arguments.processes,
        arguments.turns,
        tuple(arguments.forms),
        tuple(arguments.peer_precisions),
    )
    for name in arguments.workloads:
        comparison.run(WORKLOADS / f"{name}.toml")


if __name__ == "__main__":
    main()
