"""Simulated rounds: the same bits again, whoever computes them and wherever they were interrupted."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.simulate import begin
from coordinator.messaging.cohort import select
from coordinator.planning.capacity_levels import device_names
from coordinator.rounds import aggregation
from coordinator.rounds import round as engine
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, open_simulation
from coordinator.simulation.local_training import Trained
from coordinator.simulation.orders import Tally, train
from coordinator.simulation.record import Record, read_record
from coordinator.simulation.simulator import run_rounds
from coordinator.simulation.workers import Refused, Work, Workers
from coordinator.submodels.values import State, Submodel
from edge.contracts.errors import ConfigError, LedgerError, PlanError
from edge.contracts.tensor_file import decode_tensors
from tests.coordinator.simulation.small_simulation import WITH_NORM, changed, final_bytes, simulated, small


def without_times(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("at_s", "wall_s")} for line in lines]


def test_same_configuration_gives_the_same_bits_again(tmp_path: Path) -> None:
    for name in ("first", "again"):
        simulated(small(), tmp_path / name)
    simulated(small(federation={"seed": 6}), tmp_path / "other")
    assert final_bytes(tmp_path / "first") == final_bytes(tmp_path / "again") != final_bytes(tmp_path / "other")
    assert without_times(tmp_path / "first") == without_times(tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": {"options": {"hidden": [512, 512]}}},  # a large layer, whose factors are kept
        {"model": {"options": {"hidden": [512, 512]}}, "simulation": {"precision": "bfloat16"}},
    ],
    ids=["small", "large", "bfloat16"],
)
def test_number_of_workers_changes_no_bit(tmp_path: Path, change: dict[str, Any]) -> None:
    alone = simulated(small(**change), tmp_path / "alone")
    together = simulated(small(**change), tmp_path / "together", workers=3)
    assert final_bytes(tmp_path / "alone") == final_bytes(tmp_path / "together")
    assert without_times(tmp_path / "alone") == without_times(tmp_path / "together")
    assert alone["evaluation"] == together["evaluation"]
    assert (alone["simulation"]["workers"], together["simulation"]["workers"]) == (1, 3)


@pytest.mark.slow
def test_learns_and_scores_every_model_of_the_method(tmp_path: Path) -> None:
    config = small(federation={"rounds": 12}, training={"epochs": 2})
    summary = simulated(config, tmp_path / "run")
    assert set(summary["evaluation"]["models"]) == {"server", "full", "rank 1/4", "rank 1/8"}
    assert summary["accuracy"] == summary["evaluation"]["models"]["full"]["accuracy"] > 0.7
    assert summary["devices"] == len(summary["device_table"]) == 6
    evaluated = [line["round"] for line in without_times(tmp_path / "run") if "evaluation" in line]
    assert evaluated == [1, 3, 5, 7, 9, 11]
    with np.errstate(all="raise"):
        tensors = decode_tensors(final_bytes(tmp_path / "run"), where="final")
    assert {name: value.shape for name, value in tensors.items()}["fc1.weight"] == (32, 64)


def test_round_has_the_devices_and_bytes_of_a_real_one(tmp_path: Path) -> None:
    config = small()
    simulated(config, tmp_path)
    record = read_record(tmp_path)
    assert record is not None
    for number, metrics in enumerate(record.rounds):
        chosen = select(device_names(config.cohort), 4, seed=5, round_index=number, attempt=0)
        levels = [("full", "rank 1/4", "rank 1/8")[int(name[-2:]) // 2] for name in chosen]
        assert metrics["levels"] == {level: levels.count(level) for level in sorted(set(levels))}
        assert metrics["bytes_down"] == metrics["bytes_up"]  # an MLP has no frozen tensor and no buffer
    # By hand: 3,466 values of float32 in the whole model, and a header of the file below 1 kB.
    whole = next(row for row in record.devices.values() if row["level"] == "full")
    assert 0 < whole["bytes_down"] / whole["rounds"] - 4 * (64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10) < 1000


def test_batch_norm_gets_a_statistics_round(tmp_path: Path) -> None:
    config = changed(load_config_text(WITH_NORM), federation={"rounds": 2})
    summary = simulated(config, tmp_path / "static")
    lines = without_times(tmp_path / "static")
    assert [(line["round"], line["program"]) for line in lines] == [(0, "train"), (1, "train"), (2, "stats")]
    # A width of which no device is asked would have no statistics: all of them are.
    assert [line["reports"] for line in lines] == [4, 4, config.cohort.local_devices]
    assert (
        lines[1]["evaluation"]
        != lines[2]["evaluation"]
        == {label: values for label, values in summary["evaluation"]["models"].items()}
    )
    running = changed(config, evaluation={"norm": "running"})
    simulated(running, tmp_path / "running")
    assert len(without_times(tmp_path / "running")) == 2


class Stopped(Exception):
    """The simulation was stopped by the test."""


@pytest.mark.slow
@pytest.mark.parametrize("text", ["without norm", "with norm"])
@pytest.mark.parametrize("commits", [1, 3])
def test_interrupted_simulation_ends_with_the_same_bits(
    text: str, commits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small() if text == "without norm" else load_config_text(WITH_NORM)
    simulated(config, tmp_path / "whole")
    commit, done = engine.commit, 0

    def stopping(*arguments: Any) -> State:
        nonlocal done
        state = commit(*arguments)
        done += 1
        if done == commits:
            raise Stopped
        return state

    with monkeypatch.context() as patched:
        patched.setattr(engine, "commit", stopping)
        with pytest.raises(Stopped):
            simulated(config, tmp_path / "parts")
    record = read_record(tmp_path / "parts")
    assert record is not None
    assert (record.done, record.finished) == (commits, False)
    simulated(config, tmp_path / "parts")
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "parts")
    assert len(list((tmp_path / "parts" / "checkpoints").glob("after-*"))) == 1


def test_other_configuration_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    simulated(small(federation={"rounds": 1}), tmp_path)
    with pytest.raises(ConfigError, match="simulation of another configuration"):
        simulated(small(federation={"rounds": 2}), tmp_path)


def test_run_file_of_an_earlier_release_is_the_same_configuration(tmp_path: Path) -> None:
    config = small(federation={"rounds": 1})
    simulated(config, tmp_path)
    path = tmp_path / "config.toml"
    without = path.read_text().replace('runtime = "torch"\n', "")
    assert without != path.read_text()
    path.write_text(without)
    assert begin(config, tmp_path).done == 1
    path.write_text(without.replace("rounds = 1", "rounds = 1\nunknown = 1"))
    with pytest.raises(ConfigError, match="simulation of another configuration"):
        begin(config, tmp_path)


def test_lost_checkpoint_is_named(tmp_path: Path) -> None:
    simulated(small(federation={"rounds": 1}), tmp_path)
    (tmp_path / "checkpoints" / "after-00001.safetensors").unlink()
    with pytest.raises(LedgerError, match=r"after-00001\.safetensors: cannot be read"):
        simulated(small(federation={"rounds": 1}), tmp_path)


def test_diverged_devices_are_left_out_and_too_few_end_the_run(tmp_path: Path) -> None:
    config = small(training={"lr": 1e30})
    with pytest.raises(PlanError, match=r"no updates|0 of 4 devices reported"):
        simulated(config, tmp_path)


class RefusingSecond:
    """Workers whose second device refuses and whose third sends what is not finite."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def train(self, work: Iterable[Work]) -> Iterator[Trained | Refused]:
        for number, result in enumerate(self._workers.train(work)):
            assert isinstance(result, Trained)
            if number == 2:
                result = replace(result, tensors={n: v * np.float32("nan") for n, v in result.tensors.items()})
            yield Refused("out of memory") if number == 1 else result

    def outputs(self, models: Iterable[Submodel]) -> list[np.ndarray]:
        return self._workers.outputs(models)


def test_devices_that_refuse_or_diverge_are_left_out(tmp_path: Path) -> None:
    with open_simulation(small(), tmp_path, Record(), SimulationOptions(quiet=True)) as simulation:
        simulation = replace(simulation, workers=RefusingSecond(simulation.workers))
        state: State = simulation.method.init()
        devices = list(simulation.shares)[:4]
        tally = Tally()
        outcomes = list(train(simulation, state, devices, 0, "train", tally))
    updates = [outcome[0] for outcome in outcomes if not isinstance(outcome, Refused)]
    assert [u.device for u in updates] == [devices[0], devices[3]]
    assert sum(tally.levels.values()) == 2
    assert tally.refused[0] == "out of memory"
    assert devices[2] in tally.refused[1]
    assert "not finite" in tally.refused[1]


def test_dynamic_capacity_changes_a_devices_level_between_rounds(tmp_path: Path) -> None:
    config = small(federation={"rounds": 4}, cohort={"capacity": "dynamic", "size": 6})
    with open_simulation(config, tmp_path, Record(), SimulationOptions(quiet=True)) as simulation:
        run_rounds(simulation)
        seen = {simulation.capacities.level("device-00", number).name for number in range(8)}
    assert len(seen) > 1


def _killed_in_mid_round(run_dir: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    aggregate, rounds = aggregation.aggregate, 0

    def killing(*arguments: Any) -> State:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return aggregate(*arguments)

    aggregation.aggregate = killing
    simulated(small(), Path(run_dir))


@pytest.mark.slow
def test_killed_simulation_goes_on_from_its_last_round(tmp_path: Path) -> None:
    simulated(small(), tmp_path / "whole")
    process = multiprocessing.get_context("spawn").Process(target=_killed_in_mid_round, args=(str(tmp_path / "parts"),))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    record = read_record(tmp_path / "parts")
    assert record is not None
    assert record.done == 1
    simulated(small(), tmp_path / "parts")
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_simulation_that_stops_early_gathers_statistics_and_ends_so_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """At a learning rate of nothing only running statistics move; the first evaluation that is no better is the end."""
    config = changed(
        load_config_text(WITH_NORM),
        federation={"rounds": 9, "patience": 1, "keep_best": True, "keep_every": 1},
        training={"lr": 1e-12},
        evaluation={"every": 1},
    )
    commit, done = engine.commit, 0

    def stopping(*arguments: Any) -> State:
        nonlocal done
        state = commit(*arguments)
        done += 1
        if done == commits:
            raise Stopped
        return state

    if commits:
        with monkeypatch.context() as patched:
            patched.setattr(engine, "commit", stopping)
            with pytest.raises(Stopped):
                simulated(config, tmp_path)
    summary = simulated(config, tmp_path)
    lines = without_times(tmp_path)
    *trained, _ = scores = [line["evaluation"]["server"]["accuracy"] for line in lines]
    count = len(trained)
    assert [(line["round"], line["program"]) for line in lines] == [
        *((n, "train") for n in range(count)),
        (count, "stats"),
    ]
    assert count < 9
    assert trained[:-1] == sorted({*trained[:-1]})
    assert trained[-1] <= trained[-2]
    assert (summary["rounds"], summary["stopped_early"]) == (count, True)
    best = summary["best"]
    assert best["value"] == max(scores)
    assert best["round"] == 1 + scores.index(max(scores))
    names = {path.name for path in (tmp_path / "checkpoints").glob("*")}
    kept = {name for name in names if name.startswith("round-")}
    assert kept == {f"round-{number + 1:05d}.safetensors" for number in range(count)}
    assert names >= {"best.safetensors", "final.safetensors"}
