"""Two rounds of PriSM on an LSTM over MQTT: agents train factors of its gate matrices, the server has whole ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.data.datasets import Dataset
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import build_method
from coordinator.run_file.loading import load_config_text
from edge.contracts.tensor_file import read_tensor_file

pytestmark = [pytest.mark.broker, pytest.mark.runtime, pytest.mark.slow]

CONFIG = """
[federation]
name = "sentences"
seed = 5
rounds = 2
[model]
build = "lstm"
input = [6]
classes = 3
options = { hidden = 16 }
[method]
name = "prism"
levels = [0.25]
kappa = 2
[training]
steps = 4
batch = 8
lr = 0.1
momentum = 0.9
weight-decay = 0.0002
clip-norm = 5.0
[data]
source = "tests.federation.test_recurrent_factors:sentences"
[evaluation]
every = 0
[cohort]
deadline-s = 120
[[cohort.local]]
count = 2
[broker]
url = "embedded"
"""


def sentences(path: Path | None, seed: int, holdout: float) -> Dataset:
    """The class is how often the first symbol occurs again."""
    x = np.random.default_rng(seed).integers(0, 4, (120, 6))
    y = np.minimum((x[:, 1:] == x[:, :1]).sum(1), 2)
    return Dataset(x[:96], y[:96], x[96:], y[96:], ("0", "1", "2"))


def test_agents_train_the_factors_alone(tmp_path: Path) -> None:
    config = load_config_text(CONFIG)
    summary = start_run(config, tmp_path / "run", RunOptions(quiet=True))
    assert summary["committed_rounds"] == 2
    assert not summary["torch_loaded_on_devices"]
    assert summary["evaluation"]["onnx_predictions_equal"]
    before = build_method("prism", dense_module(config), config.method.options).init().tensors
    after = read_tensor_file(tmp_path / "run" / "checkpoints" / "final.safetensors", where="final model")
    assert after.keys() == before.keys()
    assert all(not np.array_equal(after[name], value) for name, value in before.items())
    # 4 of 16 components, 2 of the embedding's 8; two rounds of two devices, beside the files' headers.
    floats = 90 * 8 + 4 * 64 + 17 * 3 + 2 * (64 + 8) + 3 * 4 * (64 + 16)
    assert 4 * 4 * floats < summary["bytes_up"] < 4 * (4 * floats + 2500)
