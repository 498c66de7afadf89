"""Two real rounds of every kind of device program on every runtime.

MQTT broker, agent processes, a tiny network.

``docs/methods.md`` says of each pair whether it trains or what refuses it at plan; either is shown here, in a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module
from coordinator.ledger.ledger import Ledger
from coordinator.methods import build_method
from edge.contracts.errors import PlanError
from edge.contracts.tensor_file import read_tensor_file
from tests.conformance.method_runs import CASES, LINES, PAIRS, REFUSED, ROUNDS, TRAINED, expected, run_config

pytestmark = [pytest.mark.broker, pytest.mark.runtime, pytest.mark.slow]


def summary_of(config: RunConfig, folder: Path) -> dict[str, Any]:
    return start_run(config, folder / "run", RunOptions(quiet=True))


@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize(("name", "runtime"), PAIRS)
def test_pair_trains_two_rounds_over_mqtt_or_is_refused_at_plan(name: str, runtime: str, tmp_path: Path) -> None:
    case = CASES[name]
    told = expected(case, runtime)
    config = run_config(case, tmp_path, runtime=runtime, lines=LINES)
    if told == TRAINED:
        _check_trained(config, runtime, tmp_path)
    else:
        _check_refused(config, runtime, tmp_path, told.removeprefix(REFUSED))


def _check_trained(config: RunConfig, runtime: str, folder: Path) -> None:
    summary = summary_of(config, folder)
    assert summary["committed_rounds"] >= ROUNDS
    assert set(summary["runtimes"]) == {runtime}
    assert not summary["torch_loaded_on_devices"]
    assert summary["evaluation"]["onnx_predictions_equal"]
    before = build_method(config.method.name, dense_module(config), config.method.options).init().tensors
    after = read_tensor_file(folder / "run" / "checkpoints" / "final.safetensors", where="final model")
    assert after.keys() == before.keys()
    assert all(after[n].shape == v.shape and np.isfinite(after[n]).all() for n, v in before.items())
    assert sum(not np.array_equal(after[n], v) for n, v in before.items()) >= 2


def _check_refused(config: RunConfig, runtime: str, folder: Path, reason: str) -> None:
    with pytest.raises(PlanError) as caught:
        summary_of(config, folder)
    message = str(caught.value)
    assert f"method {config.method.name}" in message
    assert f"needs {reason}" in message
    assert f"runtime {runtime} cannot carry" in message
    with Ledger.open(folder / "run" / "ledger.sqlite") as ledger:
        assert ledger.rounds.all() == ()
