"""Rounds over MQTT of a model whose masks killed channels: a narrower artifact, fewer bytes, every other bit kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.exporting.cut_exporter import dense_module
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import encode_tensors, read_tensor_file

pytestmark = [pytest.mark.broker, pytest.mark.runtime, pytest.mark.slow]


def config_text(method: str, rounds: int) -> str:
    return f"""
[federation]
name = "compacted"
seed = 5
rounds = {rounds}

[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [48, 32] }}

[data]
source = "digits"
scale = 0.0625

[method]
{method}

[training]
steps = 4
batch = 16
lr = 0.05
momentum = 0.9
weight-decay = 0.0001

[evaluation]
every = 0

[cohort]
deadline-s = 120
[[cohort.local]]
count = 2

[broker]
url = "embedded"
"""


def test_snip_trains_what_its_masks_left_alive_from_the_second_round_on(tmp_path: Path) -> None:
    text = config_text('name = "snip"\ndensity = 0.03', 3)
    summary = start_run(load_config_text(text), tmp_path / "run", RunOptions(quiet=True))
    assert summary["committed_rounds"] == 3
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        rounds = [ledger.assignments.of_attempt(index, 0) for index in range(3)]
    assert [len(entries) for entries in rounds] == [2, 2, 2]
    orders = [read_order(entries[0].order) for entries in rounds]
    assert rounds[0][0].cut == {}
    narrowed = [path for path, record in rounds[1][0].cut.items() if "out_idx" in record]
    assert narrowed
    assert len({order.artifact.digest for order in orders}) == 2  # the third round has the second's artifact
    assert orders[1].artifact.digest == orders[2].artifact.digest
    assert orders[1].weights.size < 0.1 * orders[0].weights.size


def test_ticket_with_dead_channels_gives_back_every_bit_outside_them(tmp_path: Path) -> None:
    module = dense_module(load_config_text(config_text('name = "fedavg"', 1)))
    first = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    weights = [name for name, value in first.items() if value.ndim == 2]
    generator = np.random.default_rng(0)
    final = {n: v * (generator.random(v.shape) < 0.5) if n in weights else v for n, v in first.items()}
    dead = np.arange(10, 40)
    final[weights[1]][:, dead] = 0  # nobody reads these units of the first layer
    path = tmp_path / "ticket.safetensors"
    path.write_bytes(encode_tensors({n: v.astype(np.float32) for n, v in final.items()}))
    text = config_text(f'name = "lottery_ticket"\nmask-file = "{path}"', 2)
    start_run(load_config_text(text), tmp_path / "run", RunOptions(quiet=True))
    after = read_tensor_file(tmp_path / "run" / "checkpoints" / "final.safetensors", where="final model")
    bias = weights[0].replace("weight", "bias")
    assert np.array_equal(after[bias][dead], first[bias][dead])
    assert np.array_equal(after[weights[0]][dead], np.where(final[weights[0]] != 0, first[weights[0]], 0)[dead])
    assert not after[weights[1]][:, dead].any()
    alive = np.setdiff1d(np.arange(48), dead)
    assert (after[bias][alive] != first[bias][alive]).any()
    for name in weights:
        assert not after[name][final[name] == 0].any()
