"""A model as one ExecuTorch program: torch's logits, any number of examples, and no torch where it predicts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.deployment.model_files import no_int8
from edge.contracts.inference import MANIFEST_NAME
from edge.contracts.manifest import ArtifactFile, InputSpec
from edge.inference.predictor import Predictor
from export.formats import format_for
from export.training_step import Optimizer, StepSpec
from tests.contracts.samples import INFERENCE

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


class Net(nn.Module):
    """With batch norm, whose statistics are inside the file, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2).flatten(1))


def deployed(folder: Path) -> nn.Module:
    """A module with drawn weights and statistics, which lies in ``folder`` as a device gets it."""
    from export.formats.executorch_program.inference_program import write_inference_program

    torch.manual_seed(4)
    module = Net().eval()
    with torch.no_grad():
        module.norm.running_mean.uniform_(-0.5, 0.5)
        module.norm.running_var.uniform_(0.5, 2.0)
    spec = StepSpec(
        input=InputSpec(layout="chw", shape=(1, 8, 8), scale=0.5),
        classes=3,
        batch=8,
        loss="cross_entropy",
        optimizer=Optimizer(kind="sgd"),
    )
    folder.mkdir()
    tensors = {name: value.numpy() for name, value in module.state_dict().items()}
    write_inference_program(module, spec, tensors, folder / "model.pte")
    data = (folder / "model.pte").read_bytes()
    manifest = msgspec.structs.replace(
        INFERENCE,
        runtime="executorch",
        minimum_runtime_version=format_for("executorch").minimum_runtime_version,
        precision="float32",
        file=ArtifactFile("model.pte", hashlib.sha256(data).hexdigest(), len(data)),
        input=spec.input,
        classes=("a", "b", "c"),
        output=(3,),
        personal=msgspec.UNSET,
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return module


def test_program_says_what_torch_says(tmp_path: Path) -> None:
    module = deployed(tmp_path / "model")
    x = np.random.default_rng(1).normal(size=(70, 1, 8, 8)).astype(np.float32)
    with torch.no_grad():
        expected = module.double()(torch.from_numpy(x).double() * 0.5).numpy()
    predictor = Predictor(tmp_path / "model")
    for count in (1, 32, 33, 70):  # 32 are planned for
        assert np.abs(predictor.logits(x[:count]) - expected[:count]).max() < 1e-5 * np.abs(expected).max()
    assert predictor.logits(x[:0]).shape == (0, 3)
    np.savez(tmp_path / "x.npz", x=x)
    code = (
        "import sys; sys.modules['torch'] = None\nfrom edge.__main__ import main\n"
        f"sys.exit(main(['predict', {str(tmp_path / 'model')!r}, '--data', {str(tmp_path / 'x.npz')!r}, '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["predictions"] == [("a", "b", "c")[i] for i in expected.argmax(1)]


def test_int8_is_of_onnx_alone() -> None:
    assert no_int8("onnxruntime") == ""
    assert "a .pte file holds float32" in no_int8("executorch")
