"""``apportion contributions``: a file that the method reads."""

from __future__ import annotations

from pathlib import Path

from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import build_method
from coordinator.run_file.loading import load_config
from edge.contracts.tensor_file import read_tensor_file
from tests.cli.conftest import Command

RUN = """
[federation]
name = "contributions"
rounds = 1
[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [16, 8] }
[data]
source = "digits"
scale = 0.0625
[method]
name = "fedavg"
[training]
epochs = 1
[cohort]
size = 1
"""


def test_file_of_a_run_is_read_by_the_method(command: Command, tmp_path: Path) -> None:
    path, out, weights = (tmp_path / name for name in ("run.toml", "gains.json", "weights.safetensors"))
    path.write_text(RUN)
    outcome = command(
        "contributions", path, "--out", out, "--examples", "128", "--steps", "2", "--weights-out", weights, "--json"
    )
    assert outcome.status == 0
    assert {"fc1.weight", "fc3.bias"} <= read_tensor_file(weights, where="weights").keys()
    assert outcome.line["layers"].keys() == {"fc1", "fc2"}
    module = dense_module(load_config(path))
    method = build_method("sparse_update", module, {"levels": [0.6], "contributions": str(out)})
    assert method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)


def test_unknown_measure_is_refused(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    outcome = command("contributions", path, "--out", tmp_path / "gains.json", "--measure", "luck", "--json")
    assert outcome.status == 2
    assert "use gradient or accuracy" in outcome.error["message"]
