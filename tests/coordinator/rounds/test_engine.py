"""The round loop with a driver in memory: no export, no broker, no process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.canonical import canonical_toml
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


def federation_of(folder: Path, ledger: Ledger, steps: dict[str, float], text: str = TEXT) -> Federation:
    config, blobs = load_config_text(text), BlobStore(folder / "blobs")
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


def distilling(method: str, rule: str) -> str:
    """A run whose teachers' predictions are computed from each update while it is summed."""
    options = 'levels = [1]\nproxy = "digits"\ndistillation-steps = 3'
    text = TEXT.replace('name = "fedavg"', f'name = "{method}"\n{options}')
    text = text.replace("input = [4]", "input = [64]").replace("classes = 2", "classes = 10")
    return text.replace("size = 3", "size = 6") + (f'[aggregation]\nrule = "{rule}"\n' if rule != "mean" else "")


@pytest.mark.parametrize("rule", ["mean", "median"])
@pytest.mark.parametrize("huge", [1e15, 1e25])
def test_update_that_stops_the_sum_is_set_aside_and_the_round_is_made(tmp_path: Path, rule: str, huge: float) -> None:
    """With 1e25 the teacher's predictions overflow; 1e15 is a value like others to a mean, and nothing to a median."""
    text = distilling("feddf", rule).replace("min-reports = 2", "min-reports = 3")
    steps = {"a": 0.0, "b": 0.01, "c": huge, "d": -0.01, "e": 0.02}
    with Ledger.create(
        tmp_path / "ledger.sqlite", federation="in-memory", config=canonical_toml(load_config_text(text)), seed=1
    ) as ledger:
        federation = federation_of(tmp_path, ledger, steps, text)
        state = run_rounds(federation)
        is_needed = huge > 1e20
        limit = 10 if is_needed or rule == "median" else huge
        assert all(np.isfinite(value).all() and np.abs(value).max() < limit for value in state.tensors.values())
        aside = ledger.quarantine.all()
        assert {entry.device for entry in aside} == ({"c"} if is_needed else set())
        assert {entry.code for entry in aside} <= {"stops-the-sum"}
        honest = ("a", "b", "d", "e") if is_needed else ("a", "b", "c", "d", "e")
        assert [r.participants for r in ledger.rounds.all() if r.state == "committed"] == [honest] * 2


def test_attempt_of_which_too_little_is_left_is_repeated_until_the_device_is_barred(tmp_path: Path) -> None:
    text = distilling("feddf", "median").replace("min-reports = 2", "min-reports = 3").replace("size = 6", "size = 3")
    steps = {"a": 0.0, "b": 0.01, "c": 1e25}
    with Ledger.create(
        tmp_path / "ledger.sqlite", federation="in-memory", config=canonical_toml(load_config_text(text)), seed=1
    ) as ledger:
        federation = federation_of(tmp_path, ledger, steps, text)
        run_rounds(federation)
        states = [(r.round, r.state, r.participants) for r in ledger.rounds.all()]
        assert states[0] == (0, "abandoned", ())
        assert states[-1] == (1, "committed", ("a", "b"))
        assert {entry.device for entry in ledger.quarantine.all()} == {"c"}
