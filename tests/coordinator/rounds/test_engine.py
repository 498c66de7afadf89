"""The round loop with a driver in memory: no export, no broker, no process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.run_config import canonical_toml
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.ledger.ledger import Ledger
from coordinator.methods import build_method
from coordinator.planning.artifacts import Artifacts
from coordinator.reporting.progress import Progress
from coordinator.rounds.evaluation import Score
from coordinator.rounds.federation import Federation, Stages
from coordinator.rounds.run import run_rounds
from coordinator.rounds.stages import stages_of
from coordinator.run_file.loading import load_config_text
from tests.coordinator.rounds.in_memory_devices import InMemoryDevices

TEXT = """
[federation]
name = "in-memory"
seed = 1
rounds = 2
[model]
build = "mlp"
input = [4]
classes = 2
options = { hidden = [3] }
[method]
name = "fedavg"
[data]
source = "digits"
[cohort]
size = 3
min-reports = 2
"""


def federation_of(folder: Path, ledger: Ledger, steps: dict[str, float]) -> Federation:
    config, blobs = load_config_text(TEXT), BlobStore(folder / "blobs")
    return Federation(
        name=config.federation.name,
        config=config,
        method=build_method(config.method.name, dense_module(config), config.method.options),
        artifacts=Artifacts(CutExporter(config), ledger, blobs),
        ledger=ledger,
        blobs=blobs,
        devices=InMemoryDevices(ledger, steps),
        progress=Progress(stream=None),
        evaluate=lambda state: {"server": Score(1.0, 0.5, 2)},
        stages=Stages(stages_of(config)),
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    text = canonical_toml(load_config_text(TEXT))
    return Ledger.create(tmp_path / "ledger.sqlite", federation="in-memory", config=text, seed=1)


def test_rounds_run_with_a_driver_of_fifty_lines(tmp_path: Path, ledger: Ledger) -> None:
    federation = federation_of(tmp_path, ledger, {"a": 1.0, "b": 2.0, "c": 4.0})
    before = {name: np.array(value) for name, value in federation.method.init().tensors.items()}
    state = run_rounds(federation)
    moved = 2 * (1 * 1.0 + 2 * 2.0 + 3 * 4.0) / 6  # two rounds of the mean weighted by examples
    for name, value in state.tensors.items():
        assert np.allclose(value, before[name] + moved, atol=1e-5), name
    rounds = ledger.rounds.all()
    assert [(r.round, r.attempt, r.state, r.participants) for r in rounds] == [
        (number, 0, "committed", ("a", "b", "c")) for number in range(2)
    ]
    assert rounds[-1].metrics["reports"] == 3
