"""What a statistics round does to static norms of frozen layers: one trained model, scored with three sets of them.

    python -m benchmarks.frozen_norms --data iid --rounds 8 --seeds 1 2 3

SLT on the digits drawn at 16x16, simulated. ``all`` gathers the statistics of every norm, as releases before 2026-11-27
did, ``none`` keeps those that devices learned, ``trained`` is what a statistics round gathers now.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordinator.cli.simulate import begin
from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset
from coordinator.data.digits import load_digits_dataset
from coordinator.rounds.batch_norm_statistics import state_with_statistics
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, open_simulation, simulate
from coordinator.simulation.orders import Simulation, Tally, train
from coordinator.simulation.workers import Refused
from coordinator.submodels.values import State
from edge.contracts.tensor_file import decode_tensors

PARTITIONS = {"iid": 'partition = "iid"', "skewed": 'partition = "dirichlet"\nalpha = 0.3'}
STEPS = [0.25] * 8 + [0.5] * 5 + [1.0]


def images(path: Path | None, seed: int, holdout: float = 1 / 3) -> Dataset:
    """The digits as images [N, 1, 16, 16], each pixel four times."""
    digits = load_digits_dataset(path, seed, holdout)
    x_train, x_test = (
        np.kron(x.reshape(-1, 1, 8, 8), np.ones((1, 1, 2, 2), x.dtype)) for x in (digits.x_train, digits.x_test)
    )
    return replace(digits, x_train=x_train, x_test=x_test)


def run_config(data: str, rounds: int, seed: int, *, frozen_norm: str = "static", norm: str = "running") -> RunConfig:
    """Eight devices, four in a round; evaluated without a statistics round unless ``norm`` asks for one."""
    return load_config_text(f"""
[federation]
name = "frozen-norms"
seed = {seed}
rounds = {rounds}
[model]
build = "resnet20_slt"
input = [1, 16, 16]
classes = 10
[method]
name = "slt"
rounds = {rounds}
steps = {STEPS}
levels = [0.25]
schedule = "reference"
norm = "running"
[training]
epochs = 2
batch = 16
lr = 0.05
momentum = 0.9
frozen-norm = "{frozen_norm}"
[data]
source = "benchmarks.frozen_norms:images"
{PARTITIONS[data]}
scale = 0.0625
[evaluation]
every = 0
norm = "{norm}"
[cohort]
size = 4
min-reports = 4
[[cohort.local]]
count = 8
""")


def gathered(simulation: Simulation, state: State) -> State:
    """``state`` with the statistics that all devices gather."""
    found = train(simulation, state, list(simulation.shares), state.round, "stats", Tally())
    updates = [outcome[0] for outcome in found if not isinstance(outcome, Refused)]
    return state_with_statistics(simulation.method, state, updates)


def accuracies(data: str, rounds: int, seed: int) -> Mapping[str, float]:
    """Held-out accuracy of the whole model by the statistics it has: ``all``, ``none``, ``trained``."""
    found: dict[str, float] = {}
    options = SimulationOptions(workers=1, quiet=True)
    with tempfile.TemporaryDirectory(prefix="apportion-frozen-norms-") as name:
        run_dir = Path(name)
        config = run_config(data, rounds, seed)
        simulate(config, run_dir, begin(config, run_dir), options)
        final = decode_tensors((run_dir / "checkpoints" / "final.safetensors").read_bytes(), where="final")
        for label, frozen_norm in (("all", "batch"), ("trained", "static")):
            again = run_config(data, rounds, seed, frozen_norm=frozen_norm)
            folder = run_dir / label
            folder.mkdir()
            with open_simulation(again, folder, begin(again, folder), options) as simulation:
                state = State(dict(final), {}, rounds)
                found[label] = simulation.evaluate(gathered(simulation, state))["server"].accuracy
                found["none"] = simulation.evaluate(state)["server"].accuracy
    return found


def main() -> None:
    """Print a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(PARTITIONS), default="iid")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    for seed in given.seeds:
        found = accuracies(given.data, given.rounds, seed)
        print(f"{given.data} seed {seed}: " + ", ".join(f"{k} {found[k]:.3f}" for k in ("all", "none", "trained")))


if __name__ == "__main__":
    main()
