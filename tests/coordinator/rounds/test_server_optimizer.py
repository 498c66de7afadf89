"""``[server-optimizer]`` in rounds: what moves by it, what does not, with which methods, and after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.conformance.methods.subject import Subject, trained_updates
from coordinator.exporting.cut_exporter import dense_module
from coordinator.ledger.ledger import Ledger
from coordinator.methods import METHODS, method_class
from coordinator.rounds import round as engine
from coordinator.rounds.aggregation import renew
from coordinator.rounds.federation import Federation, Stages
from coordinator.rounds.run import run_rounds
from coordinator.rounds.stage_tensors import apart, joined
from coordinator.rounds.stages.server_optimizer import OptimizesMean
from coordinator.run_file.checks import server_optimizers_refused_by
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import NotFinite, State
from edge.contracts.errors import ConfigError
from tests.conformance.method_runs import CASES, run_config
from tests.coordinator.rounds.test_engine import TEXT, federation_of
from tests.coordinator.simulation.small_simulation import WITH_NORM, final_bytes, simulated

STEPS = {"a": 1.0, "b": 2.0, "c": 4.0}
MOVED = (1 * 1.0 + 2 * 2.0 + 3 * 4.0) / 6
ALLOWED = [name for name in sorted(METHODS) if not server_optimizers_refused_by(name)]


def text_with(lines: str, text: str = TEXT) -> str:
    return f"{text}\n[server-optimizer]\n{lines}\n"


def ledger_for(folder: Path, text: str) -> Ledger:
    config = canonical_toml(load_config_text(text))
    return Ledger.create(folder / "ledger.sqlite", federation="in-memory", config=config, seed=1)


@pytest.mark.parametrize(
    ("lines", "factor"),
    [
        ('name = "fedavgm"\nbeta1 = 0.5', 1 + 1.5),  # m: Delta, 0.5 Delta + Delta
        ('name = "fedavgm"\nlr = 0.5\nbeta1 = 0.0', 1.0),
        ('name = "fedavgm"\nlr = 1\nbeta1 = 0', 2.0),
    ],
)
def test_two_rounds_by_hand(tmp_path: Path, lines: str, factor: float) -> None:
    text = text_with(lines)
    with ledger_for(tmp_path, text) as ledger:
        federation = federation_of(tmp_path, ledger, STEPS, text)
        before = {name: np.array(value) for name, value in federation.method.init().tensors.items()}
        state = run_rounds(federation)
    for name, value in state.tensors.items():
        assert np.allclose(value, before[name] + factor * MOVED, atol=1e-5), name
    _, kept = apart(state)
    assert {name.partition("/")[0] for name in kept["server-optimizer"]} == {"m"}


def test_adaptive_steps_are_by_the_rate_and_not_by_the_size_of_the_mean(tmp_path: Path) -> None:
    """Delta is the same for every entry, so x = lr Delta / (sqrt(tau^2 + Delta^2) + tau) after one round."""
    text = text_with('name = "fedadagrad"\nlr = 0.1\ntau = 0.5').replace("rounds = 2", "rounds = 1")
    with ledger_for(tmp_path, text) as ledger:
        federation = federation_of(tmp_path, ledger, STEPS, text)
        before = {name: np.array(value) for name, value in federation.method.init().tensors.items()}
        state = run_rounds(federation)
    expected = 0.1 * MOVED / (np.sqrt(0.5**2 + MOVED**2) + 0.5)
    for name, value in state.tensors.items():
        assert np.allclose(value, before[name] + expected, atol=1e-6), name


def stage_after(config_text: str, mean: State, before: State) -> State:
    """What the stage makes of ``mean``, in a federation that is its configuration and method alone."""
    config = load_config_text(config_text)
    federation: Any = type("Federation", (), {})()
    federation.config = config
    federation.method = method_class(config.method.name)(dense_module(config), config.method.options)
    return OptimizesMean().aggregated(federation, before, mean, {})


def test_running_statistics_and_counters_are_the_mean(tmp_path: Path) -> None:
    text = text_with(
        'name = "fedavgm"\nlr = 0.5', WITH_NORM.replace("levels = [1, 4, 8]", "").replace("fedhm", "fedavg")
    )
    text = text.replace("level = 4", 'level = "full"').replace('level = "rank 1/8"', 'level = "full"')
    config = load_config_text(text)
    before = method_class("fedavg")(dense_module(config), {}).init()
    mean = State({name: value + value.dtype.type(4) for name, value in before.tensors.items()}, {}, 1)
    after = stage_after(text, mean, before)
    buffers = {name for name, _ in dense_module(config).named_buffers()}
    assert buffers
    for name, value in after.tensors.items():
        expected = before.tensors[name] + before.tensors[name].dtype.type(4 if name in buffers else 2)
        assert np.allclose(value, expected, atol=1e-6), name
        assert value.dtype == before.tensors[name].dtype


def test_step_that_leaves_the_numbers_is_told(tmp_path: Path) -> None:
    before = State({"fc1.weight": np.zeros(2, np.float32)})
    mean = State({"fc1.weight": np.full(2, 3e38, np.float32)}, {}, 1)
    with pytest.raises(NotFinite, match=r"round 1: fedavgm with lr 100 makes 'fc1.weight' not finite; lower"):
        stage_after(text_with('name = "fedavgm"\nlr = 100'), mean, before)


@pytest.mark.parametrize("name", ALLOWED)
def test_plain_step_at_rate_one_is_the_methods_own_aggregate(name: str, tmp_path: Path) -> None:
    """For every method that takes a server optimizer: without momentum it is the mean, and frozen tensors stay."""
    config = run_config(CASES[name], tmp_path)
    subject = Subject(name, method_class(name), lambda: dense_module(config), config.method.options)
    method, state = subject.built()
    mean = method.aggregate(state, trained_updates(method, state))
    lines = '[server-optimizer]\nname = "fedavgm"\nlr = 1.0\nbeta1 = 0.0\n'
    text = canonical_toml(config) + lines
    after = stage_after(text, mean, state)
    for tensor, value in mean.tensors.items():
        assert np.allclose(after.tensors[tensor], value, rtol=1e-6, atol=1e-6), tensor
    stayed = stage_after(
        text.replace('"fedavgm"', '"fedadam"').replace("lr = 1.0\nbeta1 = 0.0", "lr = 1.0"), state, state
    )
    assert all(np.array_equal(stayed.tensors[tensor], value) for tensor, value in state.tensors.items())


@pytest.mark.parametrize("name", sorted({*METHODS} - {*ALLOWED}))
def test_method_that_is_no_mean_of_steps_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    text = canonical_toml(run_config(CASES[name], tmp_path)) + '[server-optimizer]\nname = "fedadam"\n'
    with pytest.raises(ConfigError) as caught:
        load_config_text(text)
    reason = server_optimizers_refused_by(name)
    assert f"$.server-optimizer.name: method {name}: {reason}" in str(caught.value)


def test_methods_that_take_one() -> None:
    """The list of docs/methods.md."""
    means = ("adapter", "fedavg", "federated_dropout", "fedrolex", "fjord", "heterofl", "lottery_ticket", "origdrop")
    assert [*means, "prefix", "prompt", "small_model", "sparse_update", "split_mix", "synflow"] == ALLOWED


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('name = "adam"', r"\$\.server-optimizer\.name: 'adam' is not known, did you mean 'fedadam'"),
        ("lr = 0.1", r"\$\.server-optimizer\.lr: belongs to a server optimizer; give its name"),
        ('name = "fedavgm"\nbeta2 = 0.9', r"\$\.server-optimizer\.beta2: fedavgm has none"),
        ('name = "fedavgm"\ntau = 0.9', r"\$\.server-optimizer\.tau: fedavgm has none"),
        ('name = "fedadam"\nlr = 0', r"\$\.server-optimizer\.lr: must be more than 0"),
        ('name = "fedadam"\nbeta1 = 1.0', r"\$\.server-optimizer\.beta1: 1.0 is outside"),
        ('name = "fedadam"\nmomentum = 1.0', r"\$\.server-optimizer\.momentum: unknown key"),
    ],
)
def test_impossible_tables_are_told(lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config_text(text_with(lines))


def test_table_reads_as_itself_and_is_not_written_where_it_is_not_asked() -> None:
    config = load_config_text(text_with('name = "fedyogi"\ntau = 0.01'))
    assert load_config_text(canonical_toml(config)) == config
    assert (config.server_optimizer.lr, config.server_optimizer.beta1) == (0.1, 0.9)
    assert "server-optimizer" not in canonical_toml(load_config_text(TEXT))


def test_tensors_of_stages_are_apart_from_a_methods_own() -> None:
    state = State({}, {"mine": np.ones(1), "stages/one/m/a.b": np.zeros(2)}, 3)
    own, kept = apart(state)
    assert [*own.extra] == ["mine"]
    assert [*kept["one"]] == ["m/a.b"]
    again = joined(own, kept)
    assert again.extra.keys() == state.extra.keys()
    assert again.round == 3


class Stopped(Exception):
    """The simulation was stopped by the test."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_interrupted_simulation_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WITH_NORM.replace("levels = [1, 4, 8]", "levels = [1, 0.5]").replace('"fedhm"', '"heterofl"')
    text = text.replace("level = 4", "level = 0.5").replace('level = "rank 1/8"', "level = 0.5")
    config = load_config_text(text_with(f'name = "{name}"', text))
    simulated(config, tmp_path / "whole")
    plain = simulated(load_config_text(text), tmp_path / "plain")
    assert plain["rounds"] == 3
    assert final_bytes(tmp_path / "plain") != final_bytes(tmp_path / "whole")
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


def test_round_made_again_has_the_same_bits(tmp_path: Path) -> None:
    """A coordinator that is killed between the sum and the commit makes the step again from the state before it."""
    text = text_with('name = "fedadam"').replace("rounds = 2", "rounds = 3")
    with ledger_for(tmp_path, text) as ledger:
        federation: Federation = federation_of(tmp_path, ledger, STEPS, text)
        states: list[State] = []
        again: list[State] = []
        commit = engine.commit

        def twice(of: Federation, current: Any, state: State, *rest: Any) -> State:
            if states:
                again.append(renew(of, states[-1], current, "train"))
                assert all(np.array_equal(again[-1].extra[n], v) for n, v in state.extra.items())
                assert all(np.array_equal(again[-1].tensors[n], v) for n, v in state.tensors.items())
            states.append(commit(of, current, state, *rest))
            return states[-1]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(engine, "commit", twice)
            run_rounds(federation)
    assert len(states) == 3
    assert len(again) == 2
    assert isinstance(federation.stages, Stages)
