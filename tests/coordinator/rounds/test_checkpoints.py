"""Early stopping, the best model and kept ones: by hand, in a run, and over kills behind a commit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import FederationConfig
from coordinator.ledger.ledger import Ledger
from coordinator.rounds.best_round import best_round, rounds_until_stop
from coordinator.rounds.crash_points import POINTS
from coordinator.rounds.evaluation import Score
from coordinator.rounds.federation import Federation
from coordinator.rounds.run import run_rounds
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from edge.contracts.tensor_file import read_tensor_file
from tests.coordinator.rounds.test_engine import TEXT, federation_of

STEPS = {"a": 1.0, "b": 2.0, "c": 4.0}
MOVED = (1 * 1.0 + 2 * 2.0 + 3 * 4.0) / 6
"""What a round adds to every tensor: the mean weighted by examples."""


def entries(*values: float | None) -> list[dict[str, Any]]:
    """Committed rounds with these accuracies; None: not evaluated."""
    return [
        {"round": n} if v is None else {"round": n, "evaluation": {"server": {"accuracy": v, "loss": -v}}}
        for n, v in enumerate(values)
    ]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_best_round_is_the_first_of_the_best(metric: str) -> None:
    assert best_round(entries(0.1, None, 0.4, 0.4, 0.2), metric) == 2
    assert best_round(entries(None, math.nan), metric) is None
    assert best_round(entries(math.nan, 0.3, math.nan), metric) == 1
    assert best_round([], metric) is None


@pytest.mark.parametrize(
    ("values", "patience", "expected"),
    [
        ((0.1, 0.2, 0.2, 0.1, 0.3), 2, 4),  # two evaluations without a better one: after the fourth round
        ((0.1, 0.2, 0.2, 0.3, 0.3), 2, 10),
        ((0.1, None, 0.1, None, 0.1, 0.9), 2, 5),  # rounds without an evaluation do not count
        ((math.nan, math.nan, 0.5), 2, 2),
        ((0.5, 0.4, 0.3), 0, 10),
    ],
)
def test_training_ends_when_patience_is_over(values: tuple[float, ...], patience: int, expected: int) -> None:
    config = FederationConfig(name="f", rounds=10, patience=patience)
    assert rounds_until_stop(entries(*values), config) == expected


def text_of(lines: str, rounds: int = 8) -> str:
    return TEXT.replace("rounds = 2", f"rounds = {rounds}\n{lines}")


def ledger_for(folder: Path, text: str) -> Ledger:
    config = canonical_toml(load_config_text(text))
    return Ledger.create(folder / "ledger.sqlite", federation="in-memory", config=config, seed=1)


def opened(folder: Path, ledger: Ledger, text: str, accuracies: list[float]) -> Federation:
    """A run whose global model is as accurate after each round as the list says."""
    federation = federation_of(folder, ledger, STEPS, text)
    return replace(
        federation,
        evaluate=lambda state: {"server": Score(1.0, accuracies[state.round - 1], 2)},
        checkpoints=folder / "checkpoints",
    )


def kept(folder: Path) -> dict[str, float]:
    """File -> how many rounds its model is from the first, by what a round adds."""
    found = {}
    for path in sorted((folder / "checkpoints").glob("*.safetensors")):
        tensors = read_tensor_file(path, where=path.name)
        first = _first_model()
        found[path.name] = round(float(np.mean(tensors[BIAS] - first[BIAS])) / MOVED, 3)
    return found


def _first_model() -> dict[str, np.ndarray]:
    from coordinator.exporting.cut_exporter import dense_module

    module = dense_module(load_config_text(TEXT))
    return {name: value.numpy() for name, value in module.state_dict().items()}


BIAS = "fc1.bias"
ACCURACIES = [0.1, 0.5, 0.7, 0.6, 0.7, 0.9, 0.9, 0.9]
LINES = "patience = 2\nkeep-every = 2"


def test_run_stops_early_and_leaves_its_best_model(tmp_path: Path) -> None:
    text = text_of(LINES)
    with ledger_for(tmp_path, text) as ledger:
        state = run_rounds(opened(tmp_path, ledger, text, ACCURACIES))
        assert state.round == 5
        assert len(ledger.rounds.all()) == 5
    assert kept(tmp_path) == {"best.safetensors": 3, "round-00002.safetensors": 2, "round-00004.safetensors": 4}


def test_run_without_patience_goes_on_and_keeps_what_it_is_asked_to(tmp_path: Path) -> None:
    text = text_of("keep-best = true")
    with ledger_for(tmp_path, text) as ledger:
        assert run_rounds(opened(tmp_path, ledger, text, ACCURACIES)).round == 8
    assert kept(tmp_path) == {"best.safetensors": 6}


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("point", ["committed", "releasing", "released"])
def test_killed_run_leaves_the_same_files_and_stops_at_the_same_round(tmp_path: Path, point: str) -> None:
    assert point in POINTS
    text = text_of(LINES)
    kills = 0

    def kill(passed: str) -> None:
        nonlocal kills
        if passed == point and not (kills % 2):
            kills += 1
            raise Killed
        kills += passed == point

    with ledger_for(tmp_path, text) as ledger:
        while True:
            federation = replace(opened(tmp_path, ledger, text, ACCURACIES), on_point=kill)
            try:
                state = run_rounds(federation)
            except Killed:
                continue
            break
        assert kills >= 5
        assert state.round == 5
        assert [r.round for r in ledger.rounds.all() if r.state == "committed"] == [0, 1, 2, 3, 4]
    assert kept(tmp_path) == {"best.safetensors": 3, "round-00002.safetensors": 2, "round-00004.safetensors": 4}


@pytest.mark.parametrize(
    ("lines", "more", "message"),
    [
        ("patience = 0", "", r"\$\.federation\.patience: 0 is outside"),
        ("patience = 2\nkeep-best = false", "", r"\$\.federation\.keep-best: is false"),
        ('metric = "loss"', "", r"\$\.federation\.metric: says which model is the best"),
        (
            'patience = 1\nmetric = "f1"',
            "",
            r"\$\.federation\.metric: 'f1' is no metric of classification; accuracy or loss",
        ),
        ("patience = 2", "[evaluation]\nevery = 0", r"\$\.federation\.patience: counts evaluations"),
        ("keep-every = -1", "", r"\$\.federation\.keep-every: -1 is outside"),
    ],
)
def test_impossible_settings_are_told(lines: str, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config_text(text_of(lines) + more)


def test_file_of_a_run_reads_as_itself_and_names_only_what_is_asked() -> None:
    config = load_config_text(text_of('patience = 2\nmetric = "loss"\nkeep-every = 3'))
    assert load_config_text(canonical_toml(config)) == config
    assert config.federation.keep_best
    plain = canonical_toml(load_config_text(TEXT))
    assert not any(key in plain for key in ("patience", "metric", "keep-"))
