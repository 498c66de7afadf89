"""Every run file in ``examples/`` runs: one round of one step, on the data that ``apportion data make`` makes for it.

Models and methods are the file's own; devices, examples and steps are as few as its method allows. Files of rounds run
as simulations; the one whose rounds are buffered has none, and runs with a device runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator.cli.simulate import simulate_in
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config
from coordinator.simulation.assembly import SimulationOptions
from export.parity import one_thread
from tests.cli.conftest import Command, command
from tests.examples.run_files import EXAMPLES, FILES, make_stand_ins

__all__ = ["command"]

BUFFERED = EXAMPLES / "buffered_digits.toml"
ROUNDS = [path for path in FILES if path != BUFFERED]
FEW = {"proxy-examples": 16, "distillation-steps": 1, "distillation-batch": 8, "distillation-epochs": 1}
"""The most of a method's options: what they have in the file needs more data or time than there is here."""
GROUPS = 2

replaced = msgspec.structs.replace


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stand_ins(tmp_path_factory.mktemp("stand-ins"), examples=120)


def small(config: RunConfig) -> RunConfig:
    """One round of ``config``: its first two groups of devices with one device each, or two devices of its only one."""
    groups = config.cohort.local[:GROUPS]
    groups = tuple(replaced(group, count=GROUPS // len(groups)) for group in groups)
    options = {key: min(value, FEW[key]) if key in FEW else value for key, value in config.method.options.items()}
    size = len(groups) * groups[0].count if config.cohort.size else 0
    return replaced(
        config,
        federation=replaced(config.federation, rounds=1),
        method=replaced(config.method, options=options),
        training=replaced(config.training, epochs=0, steps=1, batch=min(config.training.batch, 4)),
        data=replaced(config.data, devices=0),
        evaluation=replaced(config.evaluation, every=1, batch=24),
        cohort=replaced(config.cohort, local=groups, size=size, min_reports=1),
    )


@pytest.fixture
def alone() -> Iterator[None]:
    """Steps of a few examples on one thread; the other tests' workers use the other cores."""
    with one_thread():
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("path", ROUNDS, ids=[str(path.relative_to(EXAMPLES)) for path in ROUNDS])
def test_a_run_file_runs_at_a_small_size(
    path: Path, stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPORTION_DATA", str(stand_ins))
    config = small(load_config(path))
    summary = simulate_in(config, tmp_path / "run", SimulationOptions(quiet=True))
    assert summary["rounds"] == 1
    assert 0 <= summary["accuracy"] <= 1
    assert (tmp_path / "run" / "checkpoints" / "final.safetensors").stat().st_size > 0


@pytest.mark.slow
def test_the_buffered_one_runs_on_a_device_runtime(command: Command, tmp_path: Path) -> None:
    text, rounds = re.subn(r"(?m)^rounds = \d+", "rounds = 2", BUFFERED.read_text())
    text, counts = re.subn(r"(?m)^count = \d+", "count = 2", text)
    assert (rounds, counts) == (1, 1)
    (tmp_path / "buffered.toml").write_text(text)
    outcome = command("run", tmp_path / "buffered.toml", "--run-dir", tmp_path / "run", "--json")
    assert outcome.status == 0, outcome.err
    assert outcome.line["rounds"] == 2
