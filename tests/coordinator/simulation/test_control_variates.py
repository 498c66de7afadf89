"""SCAFFOLD in a simulation: beside Algorithm 1 of its paper in NumPy, interruptions, what it is refused with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.simulate import begin
from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module
from coordinator.exporting.run_data import load_run_data
from coordinator.ledger.records import Round
from coordinator.local_devices.data_folders import device_shares
from coordinator.methods import METHODS
from coordinator.rounds import round as engine
from coordinator.rounds.control_variates import RoundOfVariates, variates
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.run_file.checks import personal_layers_refused_by
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.simulation.own_layers import own_tensors
from coordinator.simulation.own_variates import KEPT as OWN
from coordinator.simulation.record import read_record, restored_state
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError
from tests.conformance.method_runs import CASES, run_config
from tests.coordinator.simulation.small_simulation import changed, final_bytes, simulated

Arrays = dict[str, np.ndarray]

TEXT = """
[federation]
name = "variates"
seed = 4
rounds = 4
[model]
build = "mlp"
options = { hidden = [6] }
[method]
name = "fedavg"
[training]
scaffold = true
epochs = 3
batch = 2000
last-batch = "keep"
lr = 0.2
[data]
source = "digits"
partition = "dirichlet"
alpha = 0.5
scale = 0.0625
[cohort]
size = 2
[[cohort.local]]
count = 7
"""
"""One batch is all that a device has: a step is one of gradient descent, whatever the order of examples."""


class WhoTrained(RoundStage):
    """Remembers the participants of each round."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        self.rounds.append(reported)
        return reported


def gradients(model: Arrays, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Of the mean cross-entropy of softmax(W2 relu(W1 x + b1) + b2), by hand, in float64."""
    hidden = np.maximum(x @ model["fc1.weight"].T + model["fc1.bias"], 0)
    logits = hidden @ model["fc2.weight"].T + model["fc2.bias"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    at_logits = (shares / shares.sum(1, keepdims=True) - np.eye(10)[y]) / len(y)
    at_hidden = (at_logits @ model["fc2.weight"]) * (hidden > 0)
    return {
        "fc1.weight": at_hidden.T @ x,
        "fc1.bias": at_hidden.sum(0),
        "fc2.weight": at_logits.T @ hidden,
        "fc2.bias": at_logits.sum(0),
    }


def algorithm_1(config: RunConfig, cohorts: list[list[str]]) -> tuple[Arrays, Arrays, dict[str, Arrays]]:
    """Model, c and every c_i after rounds of ``cohorts``; option II, devices weighed by their examples."""
    data, training = load_run_data(config), config.training
    shares = device_shares(config, data, config.data.devices)
    x = {n: v.numpy().astype(np.float64) for n, v in dense_module(config).state_dict().items()}
    c = {n: np.zeros_like(v) for n, v in x.items()}
    own: dict[str, Arrays] = {}
    for cohort in cohorts:
        ended, weights = [], []
        for device in cohort:
            share = shares[int(device.removeprefix("device-"))]
            examples = data.x_train[share].reshape(len(share), -1) * config.data.scale
            mine, y = own.get(device, {n: np.zeros_like(v) for n, v in x.items()}), dict(x)
            for _ in range(training.epochs):
                found = gradients(y, examples, data.y_train[share])
                y = {n: y[n] - training.lr * (found[n] - mine[n] + c[n]) for n in y}
            steps = training.epochs * training.lr
            own[device] = {n: mine[n] - c[n] + (x[n] - y[n]) / steps for n in y}
            ended.append(y)
            weights.append(len(share))
        x = {n: np.average([y[n] for y in ended], axis=0, weights=weights) for n in x}
        known = sorted(own)
        counts = [len(shares[int(device.removeprefix("device-"))]) for device in known]
        others = len(shares) / len(known)
        c = {n: np.average([own[d][n] for d in known], axis=0, weights=counts) / others for n in c}
    return x, c, own


def state_of(run_dir: Path, rounds: int) -> State:
    record = read_record(run_dir)
    assert record is not None
    state = restored_state(run_dir, record, rounds=rounds)
    assert state is not None
    return state


def test_rounds_are_those_of_the_papers_algorithm(tmp_path: Path) -> None:
    config, watcher = load_config_text(TEXT), WhoTrained()
    (tmp_path / "run").mkdir()
    simulate(
        config,
        tmp_path / "run",
        begin(config, tmp_path / "run"),
        SimulationOptions(quiet=True, watchers=(watcher,)),
    )
    x, c, own = algorithm_1(config, watcher.rounds)
    state = state_of(tmp_path / "run", config.federation.rounds)
    # Devices that came again, and such that never came.
    assert len(own) < min(config.data.devices, sum(map(len, watcher.rounds)))
    kept = {n.removeprefix("stages/control-variates/"): v for n, v in state.extra.items()}
    sent = variates(kept, {n: v.shape for n, v in x.items()})
    for name in x:
        np.testing.assert_allclose(state.tensors[name], x[name], rtol=0, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(sent[name], c[name], rtol=0, atol=2e-6, err_msg=name)
        for device, mine in own.items():
            np.testing.assert_allclose(
                own_tensors(state, device, OWN)[name], mine[name], rtol=0, atol=2e-6, err_msg=f"{device} {name}"
            )
    assert max(float(np.abs(value).max()) for value in c.values()) > 0.01


def test_variate_is_the_papers_mean_where_devices_have_equally_many_examples() -> None:
    """c + (1/N) sum of (c_i+ - c_i): by hand, N = 4."""
    first = RoundOfVariates({}, 4)
    first.add("a", 10, {"w": np.array([4.0])})
    first.add("b", 10, {"w": np.array([8.0])})
    kept = first.result()
    assert variates(kept, {"w": (1,)})["w"] == [3.0]  # (4 + 8) / 4
    second = RoundOfVariates(kept, 4)
    second.add("a", 10, {"w": np.array([1.0])})  # c_i+ - c_i = 1 - 3
    assert variates(second.result(), {"w": (1,)})["w"] == [2.5]


def test_more_devices_than_the_run_file_tells_are_all_counted() -> None:
    one = RoundOfVariates({}, 1)
    for device, gradient in (("a", 1.0), ("b", 2.0), ("c", 6.0)):
        one.add(device, 5, {"w": np.array([gradient])})
    assert variates(one.result(), {"w": (1,)})["w"] == [3.0]


class Stopped(Exception):
    """The simulation was stopped by the test."""


def test_interrupted_simulation_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config_text(TEXT)
    simulated(config, tmp_path / "whole")
    commit, done = engine.commit, 0

    def stopping(*arguments: Any) -> State:
        nonlocal done
        state = commit(*arguments)
        done += 1
        if done == 2:
            raise Stopped
        return state

    with monkeypatch.context() as patched:
        patched.setattr(engine, "commit", stopping)
        with pytest.raises(Stopped):
            simulated(config, tmp_path / "parts")
    simulated(config, tmp_path / "parts")
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")
    whole, again = (state_of(tmp_path / name, config.federation.rounds) for name in ("whole", "parts"))
    assert whole.extra.keys() == again.extra.keys()
    assert all(np.array_equal(whole.extra[name], again.extra[name]) for name in whole.extra)


def test_goes_with_scores_on_the_devices_own_shares(tmp_path: Path) -> None:
    """K is of the examples that a device trains on, which are fewer then; the final model is scored without a step."""
    config = changed(load_config_text(f"{TEXT}\n[evaluation]\ndevices = 0.2\n"), federation={"rounds": 2})
    simulated(config, tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [entry["program"] for entry in rounds if "program" in entry] == ["train", "train", "eval"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("momentum = 0.9", r"\$\.training\.momentum makes a step of many gradients"),
        ('optimizer = "adam"', r"adam takes other steps than the gradient"),
        ("clip-norm = 1.0", r"\$\.training\.clip-norm shortens steps"),
        ("proximal-mu = 0.1", r"\$\.training\.proximal-mu would be taken for one"),
        ('[aggregation]\nmode = "buffered"', r"mode = \"buffered\" counts updates of several models"),
        ('[aggregation]\nrule = "median"', r"rule 'median' would guard the model and not the variate"),
        ("[privacy]\nsecure-aggregation = true", r"secure-aggregation hides the updates"),
        ("[privacy]\nclip-norm = 1.0", r"\$\.privacy\.clip-norm bounds what a device says"),
        ('[updates]\nprecision = "int8"', r"precision 'int8' rounds what variates are told from"),
        ('[personal]\nlayers = ["fc2.*"]', r"\$\.personal\.layers are not aggregated"),
        (
            "[evaluation]\ndevices = 0.2\n[personal]\nfine-tune = 3",
            r"\$\.personal\.fine-tune is for a device's own data",
        ),
        ("[store]\nshards = 2", r"\$\.store\.shards is 2"),
    ],
)
def test_what_does_not_go_with_it_is_told_with_the_reason(lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.training\.scaffold: .*" + message):
        load_config_text(
            TEXT.replace("lr = 0.2\n", f"lr = 0.2\n{lines}\n" if "[" not in lines else "lr = 0.2\n")
            + (f"\n{lines}\n" if "[" in lines else "")
        )


@pytest.mark.parametrize("name", [name for name in sorted(METHODS) if personal_layers_refused_by(name)])
def test_method_whose_parts_change_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    text = canonical_toml(run_config(CASES[name], tmp_path, lines="steps = 2")).replace(
        "[training]", "[training]\nscaffold = true"
    )
    with pytest.raises(ConfigError) as caught:
        load_config_text(text)
    assert f"$.training.scaffold: method {name}: {personal_layers_refused_by(name)}" in str(caught.value)


def test_key_is_not_written_where_it_is_not_asked() -> None:
    config = load_config_text(TEXT)
    assert load_config_text(canonical_toml(config)) == config
    assert "scaffold" not in canonical_toml(load_config_text(TEXT.replace("scaffold = true\n", "")))
