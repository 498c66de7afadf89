"""Keys of the run file that simulations brought: levels of groups, capacity, speeds, schedules of the learning rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.config.training import TrainingConfig
from coordinator.rounds.evaluators import run_evaluator
from coordinator.rounds.work_order import learning_rate
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.simulation.record import Record
from edge.contracts.errors import ConfigError
from tests.coordinator.simulation.small_simulation import TEXT, changed

FULL = TEXT.replace("lr = 0.05", 'lr = 0.05\nlr-schedule = "steps"\nlr-milestones = [2, 5]\nlr-factor = 0.5').replace(
    "[cohort]", '[simulation]\nlink-mbit = 3.5\nidle-mb = 40\n[cohort]\ncapacity = "dynamic"'
)


def test_canonical_form_reads_as_the_same_configuration() -> None:
    config = load_config_text(FULL)
    assert [group.level for group in config.cohort.local] == ["full", "4", "rank 1/8"]
    assert (config.cohort.capacity, config.simulation.link_mbit, config.training.lr_milestones) == (
        "dynamic",
        3.5,
        (2, 5),
    )
    again = load_config_text(canonical_toml(config))
    assert again == config
    assert canonical_toml(again) == canonical_toml(config)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("level = 4", "level = [4]", "$.cohort.local[1].level: a level's name or value expected"),
        ("lr-milestones = [2, 5]", "", "$.training.lr-milestones"),
        ("link-mbit = 3.5", 'precision = "float16"', "$.simulation.precision: 'float16' is not known"),
        ("every = 2", 'precision = "bf16"', "$.evaluation.precision: 'bf16' is not known"),
        ("alpha = 0.5", "alpha = 0", "$.data.alpha: must be more than 0"),
        ('"dirichlet-groups"', '"dirichlet-group"', "did you mean 'dirichlet-groups'?"),
        ('"dirichlet-groups"', '"writer-groups"', "$.data.alpha: belongs to"),
        ("link-mbit = 3.5", "link-mbit = -1", "$.simulation.link-mbit"),
        ("link-mbit = 3.5", "link-mbps = 1", "$.simulation.link-mbps: unknown key, did you mean 'link-mbit'?"),
    ],
)
def test_impossible_values_are_named(old: str, new: str, problem: str) -> None:
    assert old in FULL
    with pytest.raises(ConfigError) as caught:
        load_config_text(FULL.replace(old, new))
    assert problem in str(caught.value)


def test_task_is_scored_in_float32_alone() -> None:
    config = changed(load_config_text(FULL), task={"name": "language"}, evaluation={"precision": "bfloat16"})
    x, y = np.zeros((2, 64), np.float32), np.zeros(2, np.int64)
    with pytest.raises(ConfigError, match=r"evaluation\.precision: 'bfloat16' given; a task is scored in float32"):
        run_evaluator(config, x, y)


def test_learning_rate_falls_in_steps_or_by_halves() -> None:
    steps = TrainingConfig(lr=1.0, lr_schedule="steps", lr_milestones=(2, 5), lr_factor=0.1)
    assert [learning_rate(steps, r, 10) for r in (0, 1, 2, 4, 5, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    # Source: PruneFL, CIFAR-10: 0.1 * 0.5^(r / 10000).
    halved = TrainingConfig(lr=0.1, lr_schedule="exponential", lr_half_life=10_000)
    assert [learning_rate(halved, r, 10) for r in (0, 5_000, 10_000)] == pytest.approx([0.1, 0.1 * 0.5**0.5, 0.05])


def test_buffered_run_is_not_simulated(tmp_path: Path) -> None:
    config = load_config_text(TEXT + '[aggregation]\nmode = "buffered"\n')
    with pytest.raises(
        ConfigError, match=r'\$.aggregation.mode: "buffered" given; a simulation.s rounds are synchronous'
    ):
        simulate(config, tmp_path, Record(), SimulationOptions(quiet=True))


def test_clipped_run_is_not_simulated_as_another(tmp_path: Path) -> None:
    config = load_config_text(TEXT + "[privacy]\nclip-norm = 0.5\n")
    with pytest.raises(
        ConfigError, match=r"\$.privacy.clip-norm: 0.5 given; a simulation neither clips nor adds noise"
    ):
        simulate(config, tmp_path, Record(), SimulationOptions(quiet=True))
