"""A simulation of seconds: a narrow MLP under FedHM on digits, six devices in three levels, four of them in a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coordinator.cli.simulate import begin
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.simulation.orders import Simulation, Tally, train
from coordinator.simulation.workers import Refused
from coordinator.submodels.values import State, Update

TEXT = """
[federation]
name = "small"
seed = 5
rounds = 3
[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [32, 32] }
[method]
name = "fedhm"
levels = [1, 4, 8]
[training]
epochs = 1
batch = 16
last-batch = "keep"
lr = 0.05
momentum = 0.9
frobenius-lambda = 0.0001
[data]
source = "digits"
partition = "dirichlet-groups"
alpha = 0.5
scale = 0.0625
[evaluation]
every = 2
[cohort]
size = 4
min-reports = 2
[[cohort.local]]
count = 2
level = "full"
[[cohort.local]]
count = 2
level = 4
[[cohort.local]]
count = 2
level = "rank 1/8"
"""

WITH_NORM = TEXT.replace(
    'build = "mlp"\ninput = [64]', 'build = "tests.federation.tiny_convnet:build"\ninput = [1, 8, 8]'
).replace('source = "digits"', 'source = "tests.federation.tiny_convnet:digit_images"')
WITH_NORM = WITH_NORM.replace("options = { hidden = [32, 32] }", "options = { width = 8 }")


def small(**changes: Any) -> RunConfig:
    """The configuration with parts replaced: ``federation={"rounds": 1}``."""
    return changed(load_config_text(TEXT), **changes)


def changed(config: RunConfig, **changes: Any) -> RunConfig:
    """``config`` with fields of its parts replaced."""
    parts = {name: msgspec.structs.replace(getattr(config, name), **fields) for name, fields in changes.items()}
    return msgspec.structs.replace(config, **parts)


def simulated(config: RunConfig, run_dir: Path, *, workers: int = 1) -> dict[str, Any]:
    """The summary of ``config`` simulated in ``run_dir``, from where an earlier one there stopped."""
    run_dir.mkdir(exist_ok=True)
    return simulate(config, run_dir, begin(config, run_dir), SimulationOptions(workers=workers, quiet=True))


def trained_updates(simulation: Simulation, state: State) -> list[Update]:
    """The first updates of all simulated devices, none of which refuses."""
    found = []
    for outcome in train(simulation, state, list(simulation.shares), 0, "train", Tally()):
        assert not isinstance(outcome, Refused)
        found.append(outcome[0])
    return found


def final_bytes(run_dir: Path) -> bytes:
    """The global model that was left."""
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()
