"""Methods that distil, simulated: what the devices get beside the proxy set, any number of processes, the run files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.cli.placing import place_groups
from coordinator.config.cohort import LocalGroup
from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset
from coordinator.distillation.proxy import DistilsOnProxy
from coordinator.rounds import round as engine
from coordinator.run_file.loading import load_config, load_config_text
from coordinator.simulation.assembly import SimulationOptions, open_simulation, simulate
from coordinator.simulation.record import Record
from edge.contracts.errors import ConfigError
from tests.coordinator.simulation.small_simulation import changed, final_bytes, simulated

EXAMPLE = Path(__file__).parents[3] / "examples" / "distilled_digits.toml"
PAPERS = EXAMPLE.parent / "papers"
NAMES = ("ds_fl", "fed_et", "feddf")

RUN = """
[federation]
name = "distilled"
seed = 3
rounds = 2
[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [24, 16] }
[method]
name = "NAME"
levels = [0.5, 0.25]
proxy = "held-back"
proxy-examples = 98
distillation-steps = 3
[training]
steps = 3
batch = 16
[data]
source = "digits"
scale = 0.0625
[evaluation]
every = 0
norm = "running"
[[cohort.local]]
count = 2
level = 0.5
[[cohort.local]]
count = 2
level = 0.25
"""


def test_devices_share_what_the_proxy_set_leaves(tmp_path: Path) -> None:
    config = load_config_text(RUN.replace("NAME", "feddf"))
    with open_simulation(config, tmp_path, Record(), SimulationOptions(quiet=True)) as simulation:
        assert sum(map(len, simulation.shares.values())) == 1198 - 98
        assert isinstance(simulation.method, DistilsOnProxy)
        assert simulation.method.proxy.seed == 3
        assert len(simulation.method.proxy.inputs(None)) == 98  # type: ignore[arg-type]  # opened already


def test_no_proxy_set_is_refused_before_the_first_round(tmp_path: Path) -> None:
    config = load_config_text(RUN.replace("NAME", "feddf").replace('proxy = "held-back"\nproxy-examples = 98\n', ""))
    with pytest.raises(ConfigError, match=r"\$\.method\.proxy: feddf"):
        simulate(config, tmp_path, Record(), SimulationOptions(quiet=True))
    assert not (tmp_path / "metrics.jsonl").exists()


class Stopped(Exception):
    """The simulation was stopped by the test."""


def test_no_proxy_set_is_refused_by_plan() -> None:
    text = RUN.replace("NAME", "feddf").replace('proxy = "held-back"\nproxy-examples = 98\n', "")
    with pytest.raises(ConfigError, match=r"\$\.method\.proxy: feddf"):
        place_groups(load_config_text(text))


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_simulation_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config_text(RUN.replace("NAME", name))
    simulated(config, tmp_path / "whole")
    commit = engine.commit

    def stopping(*arguments: Any) -> None:
        commit(*arguments)
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(engine, "commit", stopping)
        with pytest.raises(Stopped):
            simulated(config, tmp_path / "parts")
    simulated(config, tmp_path / "parts")
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")


@pytest.mark.slow
def test_number_of_processes_does_not_matter(tmp_path: Path) -> None:
    config = load_config_text(RUN.replace("NAME", "ds_fl"))
    simulated(config, tmp_path / "one")
    simulated(config, tmp_path / "two", workers=2)
    assert final_bytes(tmp_path / "one") == final_bytes(tmp_path / "two")


@pytest.mark.slow
def test_feddf_beats_the_plain_means_of_its_groups_where_labels_are_uneven(tmp_path: Path) -> None:
    # Measured with seeds 1, 2, 3: 0.750, 0.664, 0.805 against 0.462, 0.609, 0.668.
    config = load_config(EXAMPLE)
    plain = {**config.method.options, "distillation-steps": 0}
    found = [
        simulated(each, tmp_path / str(number))["evaluation"]["models"]["server"]["accuracy"]
        for number, each in enumerate([config, changed(config, method={"options": plain})])
    ]
    assert found[0] > found[1] + 0.1


def images(path: Path | None, seed: int, holdout: float) -> Dataset:
    """Twenty-four made-up CIFAR-10 images, four of them held out."""
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (24, 3, 32, 32), np.uint8), np.arange(24) % 10
    return Dataset(x[:20], y[:20], x[20:], y[20:], tuple(map(str, range(10))))


def shortened(path: Path, folder: Path) -> RunConfig:
    """The file's model, method and training with one step on two devices and one of every student."""
    config = load_config(path, environ={"APPORTION_DATA": str(folder)})
    few = tuple(LocalGroup(count=1, level=group.level) for group in config.cohort.local[-2:])
    config = changed(
        config,
        federation={"rounds": 1},
        training={"epochs": 0, "steps": 1, "batch": 4, "last_batch": "wrap"},
        data={"source": f"{images.__module__}:images", "partition": "iid", "devices": 0},
        evaluation={"batch": 4},
    )
    options = {**config.method.options, "proxy-examples": 8, "distillation-steps": 1}
    return msgspec.structs.replace(
        config,
        cohort=msgspec.structs.replace(config.cohort, size=2, local=few),
        method=msgspec.structs.replace(config.method, options=options),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_round_of_the_papers_settings(name: str, tmp_path: Path) -> None:
    config = shortened(PAPERS / f"{name}_cifar10.toml", tmp_path)
    assert config.method.name == name
    summary = simulate(config, tmp_path, Record(), SimulationOptions(quiet=True))
    assert summary["refused"] == 0
    assert {"server"} <= summary["evaluation"]["models"].keys()
