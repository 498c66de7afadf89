"""FedProx's term in the steps of devices: beside the simulation's on every runtime, and what it does in a round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.exporting.cut_exporter import CutExporter
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ConfigError
from edge.contracts.tensor_file import decode_tensors
from edge.runtimes import RUNTIMES
from export.training_step import StepSpec, step_values
from tests.conformance.method_runs import CASES, LINES, config_text, run_config
from tests.conformance.test_method_steps import check
from tests.coordinator.simulation.small_simulation import changed, final_bytes, simulated, small

PROXIMAL = f"{LINES}\nproximal-mu = 0.5"
PAIRS = [("fedavg", runtime) for runtime in RUNTIMES] + [
    (case, "onnxruntime") for case in ("fedhm", "fedhm-distillation", "fjord", "heterofl", "prunefl", "split_mix")
]
"""Every runtime in one method, and every kind of cut on one runtime."""


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize(("name", "runtime"), PAIRS)
def test_three_proximal_steps_are_those_of_the_simulation(
    name: str, runtime: str, tmp_path: Path, exports: Path
) -> None:
    config = run_config(CASES[name], tmp_path, runtime=runtime, lines=PROXIMAL)
    assert check(config, runtime, tmp_path, exports) >= 1


def test_step_without_the_term_is_described_as_before() -> None:
    config = load_config_text(config_text("fedavg", ""))
    plain = CutExporter(config).step(DeviceProgram())
    assert not {"proximal", "corrected"} & {*step_values(plain)}
    assert "proximal_mu" not in plain.hyper
    assert "proximal-mu" not in canonical_toml(config)


def test_step_with_the_term_keeps_masked_layers_dense() -> None:
    config = load_config_text(config_text("fedavg", "", lines=PROXIMAL))
    program = DeviceProgram(masked=("8.weight",), sparse=(("8.weight", 30),))
    step = CutExporter(config).step(program)
    assert step.proximal
    assert step.sparse == ()
    assert step_values(step)["proximal"] is True
    with pytest.raises(ValueError, match=r"sparse weight '8\.weight': the received weights are dense"):
        StepSpec(**{name: getattr(step, name) for name in step.__struct_fields__ if name != "sparse"}, sparse=_sparse())


def _sparse() -> tuple[object, ...]:
    from export.training_step import SparseWeight

    return (SparseWeight("8.weight", 30),)


@pytest.mark.parametrize("value", ["-1", "'a'", "nan"])
def test_impossible_mu_is_told(value: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.training\.proximal-mu"):
        load_config_text(config_text("fedavg", "", lines=f"proximal-mu = {value}"))


@pytest.mark.slow
def test_larger_mu_moves_the_model_less(tmp_path: Path) -> None:
    """Without momentum, a round's distance from the received model falls as mu rises."""
    moved = []
    for mu in (0.0, 1.0, 10.0):
        config = small(federation={"rounds": 1}, training={"proximal_mu": mu, "momentum": 0.0, "epochs": 4})
        config = changed(config, training={"frobenius_lambda": 0.0})
        folder = tmp_path / f"mu-{mu:g}"
        simulated(config, folder)
        after = decode_tensors(final_bytes(folder), where="final")
        still = tmp_path / f"still-{mu:g}"
        simulated(changed(config, training={"lr": 1e-30}), still)
        before = decode_tensors(final_bytes(still), where="still")
        moved.append(float(np.sqrt(sum(np.square(after[n] - before[n]).sum() for n in after))))
    assert moved[0] > moved[1] > moved[2] > 0
