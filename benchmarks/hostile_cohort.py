"""What hostile devices do to accuracy under each aggregation rule, on scikit-learn's digits, simulated.

``python -m benchmarks.hostile_cohort`` trains an MLP (64-64-10) with twenty devices of equal shares, four of them
hostile in every round, under every attack and rule, and prints the table of ``docs/defences.md``; ``--method heterofl``
with half the devices at width 1/2, hostile ones in both halves. The same seed gives the same table on one CPU type.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coordinator.aggregation import AGGREGATIONS
from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import load_dataset
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, open_simulation
from coordinator.simulation.local_training import SimulatedData, Trained
from coordinator.simulation.record import Record
from coordinator.simulation.simulator import run_rounds
from coordinator.simulation.worker import local_training
from coordinator.simulation.workers import Refused, ThisProcess, Work
from coordinator.submodels.values import Submodel

DEVICES, ROUNDS = 20, 12
HOSTILE = (3, 8, 11, 16)
"""Numbers of the hostile devices: a fifth, as many in either half."""

RULES = ("mean", *AGGREGATIONS)

COHORT = {
    "fedavg": f"[[cohort.local]]\ncount = {DEVICES}\n",
    "heterofl": f'[[cohort.local]]\ncount = {DEVICES // 2}\nlevel = "1"\n'
    f'[[cohort.local]]\ncount = {DEVICES // 2}\nlevel = "0.5"\n',
}

Poison = Callable[[Submodel, Trained], Trained]


@dataclass(frozen=True)
class Attack:
    """What a hostile device does.

    Attributes:
        scale: its difference to the weights it got, multiplied with this.
        flips_labels: it trains on class 9 - c in place of c.
    """

    scale: float = 1.0
    flips_labels: bool = False


ATTACKS = {
    "none": Attack(),
    "label flip": Attack(flips_labels=True),
    "sign flip": Attack(scale=-1.0),
    "sign flip x10": Attack(scale=-10.0),
    "label flip x10": Attack(scale=10.0, flips_labels=True),
}


class HostileWorkers:
    """Trains as :class:`ThisProcess` does, and changes what hostile devices send."""

    def __init__(self, workers: ThisProcess, hostile: frozenset[str], scale: float) -> None:
        self._workers = workers
        self._hostile = hostile
        self._scale = scale

    def train(self, work: Iterable[Work]) -> Iterator[Trained | Refused]:
        """As :meth:`coordinator.simulation.workers.Workers.train`."""
        for item in work:
            (result,) = self._workers.train([item])
            if item.order.device in self._hostile and isinstance(result, Trained):
                result = replace(result, tensors=scaled(item.submodel, result, self._scale))
            yield result

    def logits(self, models: Iterable[Submodel]) -> list[np.ndarray]:
        """As :meth:`coordinator.simulation.workers.Workers.logits`."""
        return self._workers.logits(models)


def scaled(submodel: Submodel, trained: Trained, scale: float) -> dict[str, np.ndarray]:
    """The trained tensors with their difference to the submodel's multiplied."""
    return {
        name: (submodel.tensors[name] + scale * (value - submodel.tensors[name])).astype(value.dtype)
        for name, value in trained.tensors.items()
    }


def config_of(method: str, rule: str, *, seed: int, rounds: int = ROUNDS) -> RunConfig:
    """The run of one cell of the table."""
    levels = "levels = [1, 0.5]" if method == "heterofl" else ""
    return load_config_text(
        f"""
[federation]
name = "hostile"
seed = {seed}
rounds = {rounds}
[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [64] }}
[method]
name = "{method}"
{levels}
[aggregation]
rule = "{rule}"
trim = 0.2
[training]
epochs = 2
batch = 16
last-batch = "wrap"
lr = 0.05
momentum = 0.9
[data]
source = "digits"
partition = "iid"
scale = 0.0625
[evaluation]
every = 0
[cohort]
min-reports = {DEVICES}
{COHORT[method]}
"""
    )


def accuracy(method: str, rule: str, attack: Attack, *, seed: int = 7, rounds: int = ROUNDS) -> float:
    """Share of the held-out digits that the server's model gets right after the last round."""
    config = config_of(method, rule, seed=seed, rounds=rounds)
    dataset = load_dataset("digits", None, seed, config.evaluation.holdout)
    with (
        tempfile.TemporaryDirectory(prefix="apportion-hostile-") as folder,
        open_simulation(config, Path(folder), Record(), SimulationOptions(quiet=True)) as simulation,
    ):
        labels, hostile = dataset.y_train.copy(), frozenset(f"device-{number:02d}" for number in HOSTILE)
        if attack.flips_labels:
            for device in hostile:
                labels[simulation.shares[device]] = 9 - labels[simulation.shares[device]]
        data = SimulatedData(dataset.x_train, labels, dataset.x_test, dataset.y_test)
        here = ThisProcess(local_training(config, data, "cpu"), len(dataset.y_test))
        attacked = replace(simulation, workers=HostileWorkers(here, hostile, attack.scale))
        return attacked.evaluate(run_rounds(attacked))["server"].accuracy


def table(method: str, rules: Sequence[str], attacks: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    """Lines of the table, each as soon as it is known."""
    yield "| rule | " + " | ".join(attacks) + " |"
    yield "|" + " --- |" * (len(attacks) + 1)
    for rule in rules:
        cells = [
            f"{np.mean([accuracy(method, rule, ATTACKS[attack], seed=seed) for seed in seeds]):.3f}"
            for attack in attacks
        ]
        yield f"| `{rule}` | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=sorted(COHORT), default="fedavg")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--attacks", nargs="+", choices=sorted(ATTACKS), default=tuple(ATTACKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=(7, 8))
    arguments = parser.parse_args()
    for line in table(arguments.method, arguments.rules, arguments.attacks, arguments.seeds):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
