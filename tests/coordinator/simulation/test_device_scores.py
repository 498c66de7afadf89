"""Scores on the devices' own shares in a simulation: against torch, over interruptions, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.config.canonical import canonical_toml
from coordinator.exporting.cut_exporter import dense_module
from coordinator.exporting.run_data import load_run_data
from coordinator.local_devices.data_folders import device_shares
from coordinator.reporting.sections.device_scores import device_scores
from coordinator.rounds import round as engine
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError
from edge.contracts.evaluation import HeldOut
from edge.contracts.streams import stream_seed
from edge.contracts.tensor_file import read_tensor_file
from edge.training.held_out import held_out_rows
from tests.coordinator.reporting.subjects import subject
from tests.coordinator.simulation.small_simulation import TEXT, WITH_NORM, changed, final_bytes, simulated

SCORED = TEXT.replace("every = 2\n", "every = 2\ndevices = 0.2\n")
TUNED = SCORED + "[personal]\nfine-tune = 3\n"


def entries(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_sums_are_torchs_over_rows_that_nobody_trained_on(tmp_path: Path) -> None:
    config = load_config_text(
        SCORED.replace('name = "fedhm"\nlevels = [1, 4, 8]', 'name = "fedavg"')
        .replace("level = 4", "")
        .replace('level = "full"', "")
        .replace('level = "rank 1/8"', "")
        .replace("frobenius-lambda = 0.0001", "")
    )
    config = changed(config, federation={"rounds": 1})
    summary = simulated(config, tmp_path / "run")
    first, last = entries(tmp_path / "run")
    assert (first["program"], first["device_evaluation"]["model"]) == ("train", 0)
    assert (last["program"], last["device_evaluation"]["model"]) == ("eval", 1)
    assert summary["device_evaluation"] == last["device_evaluation"]
    module = dense_module(config)
    tensors = read_tensor_file(tmp_path / "run" / "checkpoints" / "final.safetensors", where="final")
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()})
    module.eval()
    data = load_run_data(config)
    right, loss, examples, own = 0, 0.0, 0, []
    for index, rows in enumerate(device_shares(config, data, 6)):
        device = f"device-{index:02d}"
        rule = HeldOut(share=0.2, seed=stream_seed(5, "held-out", 0, device), least=10)
        kept = rows[held_out_rows(len(rows), rule)]
        x, y = torch.from_numpy(data.x_train[kept] / 16).float(), torch.from_numpy(data.y_train[kept])
        with torch.no_grad():
            logits = module(x)
        right += int((logits.argmax(1) == y).sum())
        loss += float(torch.nn.functional.cross_entropy(logits.double(), y, reduction="sum"))
        examples += len(kept)
        own.append(int((logits.argmax(1) == y).sum()) / len(kept))
    found = last["device_evaluation"]
    assert (found["devices"], found["examples"]) == (6, examples)
    assert found["metrics"]["accuracy"]["mean"] == right / examples
    assert found["metrics"]["loss"]["mean"] == pytest.approx(loss / examples, rel=1e-6)
    assert found["metrics"]["accuracy"]["quantiles"]["0.5"] == pytest.approx(np.median(own))
    assert "device-0" in device_scores(subject(summary=summary))
    assert device_scores(subject(summary={})) == ""


class Stopped(Exception):
    """The simulation was stopped by the test."""


def stopping_after(commits: int) -> Callable[..., State]:
    """What commits a round, and stops after the last of ``commits``."""
    commit, done = engine.commit, 0

    def stopping(*arguments: Any) -> State:
        nonlocal done
        state = commit(*arguments)
        done += 1
        if done == commits:
            raise Stopped
        return state

    return stopping


@pytest.mark.slow
def test_interrupted_simulation_has_the_same_scores_and_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config_text(TUNED)
    simulated(config, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(engine, "commit", stopping_after(3))  # before the scores
        with pytest.raises(Stopped):
            simulated(config, tmp_path / "parts")
    simulated(config, tmp_path / "parts", workers=2)
    assert final_bytes(tmp_path / "parts") == final_bytes(tmp_path / "whole")
    found, whole = (
        [(e["program"], e.get("device_evaluation")) for e in entries(tmp_path / name)] for name in ("parts", "whole")
    )
    assert found == whole
    tuning = whole[-1][1]["fine_tuning"]
    assert tuning["devices"] == 6
    assert tuning["after"]["loss"] <= tuning["before"]["loss"]


def test_batch_norm_is_scored_with_the_statistics_of_the_end(tmp_path: Path) -> None:
    text = WITH_NORM.replace("every = 2\n", "every = 0\ndevices = 0.2\n").replace(
        "levels = [1, 4, 8]", 'levels = [1, 4, 8]\nnorm = "batch"'
    )
    config = changed(load_config_text(text), federation={"rounds": 1})
    summary = simulated(config, tmp_path / "run")
    assert [entry["program"] for entry in entries(tmp_path / "run")] == ["train", "stats", "eval"]
    assert not any("device_evaluation" in entry for entry in entries(tmp_path / "run")[:2])
    assert summary["device_evaluation"]["devices"] == 6
    assert summary["rounds"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "[personal]\nfine-tune = 3\n", r"\$\.personal\.fine-tune: 3 steps.*give \$\.evaluation\.devices"),
        (TEXT.replace("every = 2\n", "devices = 0.6\n"), r"\$\.evaluation\.devices"),
        (TEXT.replace("every = 2\n", "devices-least = 6\n"), r"\$\.evaluation\.devices-least: is of the devices' own"),
        (SCORED + "[privacy]\nsecure-aggregation = true\n", r"\$\.evaluation\.devices: every device's sums are told"),
        (
            SCORED + "[privacy]\nclip-norm = 1.0\nnoise-multiplier = 1.0\n",
            r"\$\.evaluation\.devices: its sums are told without noise",
        ),
    ],
)
def test_impossible_settings_are_told(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config_text(text)


def test_keys_are_written_where_they_are_used() -> None:
    for text in (SCORED, TUNED):
        config = load_config_text(text)
        assert load_config_text(canonical_toml(config)) == config
    assert "devices-least" not in canonical_toml(load_config_text(TEXT))
    assert "fine-tune" not in canonical_toml(load_config_text(TEXT))
