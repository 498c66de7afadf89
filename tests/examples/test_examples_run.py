"""Every run file in ``examples/`` runs: one round of one step, on the data that ``apportion data make`` makes for it.

Models and methods are the file's own; devices, examples and steps are as few as its method allows. Files of rounds run
as simulations; the one whose rounds are buffered has none, and runs with a device runtime.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import torch

from coordinator.cli.simulate import simulate_in
from coordinator.config.run_config import RunConfig
from coordinator.data.made import make
from coordinator.run_file.loading import load_config
from coordinator.simulation.assembly import SimulationOptions
from tests.cli.conftest import Command, command

__all__ = ["command"]

EXAMPLES = Path(__file__).parents[2] / "examples"
BUFFERED = EXAMPLES / "buffered_digits.toml"
FILES = sorted(p for p in EXAMPLES.rglob("*.toml") if p.parent.name != "containers" and p != BUFFERED)
"""All but the one whose paths are inside an image, which tests/containers runs."""
FEW = {"proxy-examples": 16, "distillation-steps": 1, "distillation-batch": 8, "distillation-epochs": 1}
"""The most of a method's options: what they have in the file needs more data or time than there is here."""
GROUPS = 2

replaced = msgspec.structs.replace


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    for name in ("cifar10", "mnist-writers", "movie-reviews"):
        make(name, folder, examples=120)
    return folder


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
def one_thread() -> None:
    """Steps of a few examples; the other tests' workers use the other cores."""
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(EXAMPLES)) for path in FILES])
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
