"""A server optimizer, FedProx and kept models in a run that is killed: the bits of one that was left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.run_file.loading import load_config_text
from tests.federation.small_run import config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

KILLS = [("aggregated-1", 1), ("before-commit", 1), ("committed", 1), ("released", 1), ("committed", 1)]


def text() -> str:
    """Three rounds of FedAvg with a term of FedProx, whose server takes steps of FedAdam."""
    plain = config_text(evaluation="every = 1").replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')
    asked = plain.replace("rounds = 3", "rounds = 3\nkeep-every = 2\nkeep-best = true")
    asked = asked.replace("epochs = 1", "epochs = 1\nproximal-mu = 0.1")
    return asked + '\n[server-optimizer]\nname = "fedadam"\nlr = 0.02\n'


def kept(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run_dir / "checkpoints").glob("*.safetensors")}


def test_killed_run_ends_with_the_same_models(tmp_path: Path) -> None:
    start_run(load_config_text(text()), tmp_path / "whole", RunOptions(quiet=True))
    for index, (point, occurrence) in enumerate(KILLS):
        crash(tmp_path / "killed", point, occurrence, text="" if index else text())
    summary = resume_run(tmp_path / "killed", RunOptions(quiet=True))
    whole = kept(tmp_path / "whole")
    assert whole.keys() >= {"final.safetensors", "best.safetensors", "round-00002.safetensors"}
    assert kept(tmp_path / "killed") == whole
    assert whole["final.safetensors"] != whole["round-00002.safetensors"]
    assert summary["best"]["file"] == "best.safetensors"
