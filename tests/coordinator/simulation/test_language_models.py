"""Language models in simulated rounds: factors travel, the base once, and every method learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.exporting.base_file import base_size
from coordinator.exporting.cut_exporter import dense_module
from coordinator.run_file.loading import load_config_text
from edge.contracts.tensor_file import decode_tensors
from tests.coordinator.simulation.small_simulation import final_bytes, simulated
from tests.language_models import run_text


def perplexities(run_dir: Path) -> list[float]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line["evaluation"]["server"]["perplexity"] for line in lines]


@pytest.mark.slow
def test_a_round_sends_the_base_once_and_factors_back(tmp_path: Path) -> None:
    config = load_config_text(run_text(rounds=2))
    summary = simulated(config, tmp_path / "run")
    base = base_size(config, dense_module(config))
    assert base is not None
    rows = {row["device"]: row for row in summary["device_table"]}
    for row in rows.values():
        assert base.size < row["bytes_down"] < base.size + 2.2 * row["bytes_up"]
    # Of rank 4: u and v of two projections in two blocks, float32, in two rounds; and a header of each file.
    factors = 2 * 2 * 4 * 4 * ((48 + 16) + (16 + 16))
    assert factors < rows["device-00"]["bytes_up"] < factors + 2 * 1000
    assert all(name.endswith((".u", ".v")) for name in decode_tensors(final_bytes(tmp_path / "run"), where="final"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedlora", "flora", "ffa_lora"])
@pytest.mark.parametrize("base", ["int8", "float32"])
def test_every_method_learns_and_repeats_its_bits(tmp_path: Path, method: str, base: str) -> None:
    config = load_config_text(run_text(method=method, rounds=3, base=base))
    for name in ("first", "again"):
        simulated(config, tmp_path / name)
    assert final_bytes(tmp_path / "first") == final_bytes(tmp_path / "again")
    reached = perplexities(tmp_path / "first")
    assert reached == sorted(reached, reverse=True)
    assert reached[-1] < reached[0] - 0.4
