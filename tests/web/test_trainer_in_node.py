"""The browser's trainer, run by Node, gives what the native session gives for the same order and data."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from edge.contracts.manifest import InputSpec
from edge.training.artifact_folder import read_artifact_folder
from export.bundle import export_artifact
from export.gate_values import gate_hyper
from export.training_step import Optimizer, StepSpec
from tests.export.test_micro_batches import WHOLE, GroupNet
from tests.export.web_case import web_order, write_case

WEB = Path(__file__).parents[2] / "edge" / "web"


@pytest.mark.parametrize("parts", [1, 4])
def test_trainer_of_the_browser_gives_the_update_of_the_native_session(parts: int, tmp_path: Path) -> None:
    """Masks, factors, a teacher, frozen tensors, clipping; whole batches and micro-batches. Three steps."""
    spec = replace(WHOLE, micro_batches=parts)
    torch.manual_seed(0)
    export_artifact(GroupNet(), spec, tmp_path / "artifact", runtime="onnxruntime_web")
    manifest, _ = read_artifact_folder(tmp_path / "artifact")
    upload = [t.name for t in manifest.tensors if t.role in ("parameter", "accumulator") and t.name != "head.weight"]
    order = web_order((*upload, "head.weight#kept"), gate_hyper(spec), batch=spec.batch)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(21, *spec.input.shape)).astype(np.float32)
    write_case(tmp_path / "case", tmp_path / "artifact", order, x, rng.integers(0, spec.classes - 1, 21))
    _assert_carried_out(tmp_path)


def test_trainer_of_the_browser_draws_the_masks_of_the_native_session(tmp_path: Path) -> None:
    """Dropout and noise, by micro-batches: bools shared out with the examples, pairs of uniform numbers."""
    layers = (nn.Flatten(), nn.Linear(12, 8), nn.Dropout(0.3), Noise(), nn.Linear(8, 3))
    spec = StepSpec(
        input=InputSpec(layout="features", shape=(12,)), classes=3, batch=8, micro_batches=2, optimizer=Optimizer()
    )
    torch.manual_seed(0)
    export_artifact(nn.Sequential(*layers), spec, tmp_path / "artifact", runtime="onnxruntime_web")
    manifest, _ = read_artifact_folder(tmp_path / "artifact")
    assert {t.dtype for t in manifest.specs("draw")} == {"bool", "float32"}
    upload = tuple(t.name for t in manifest.specs("parameter"))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(21, 12)).astype(np.float32), rng.integers(0, 3, 21)
    write_case(tmp_path / "case", tmp_path / "artifact", web_order(upload, gate_hyper(spec), batch=8), x, y)
    _assert_carried_out(tmp_path)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) if self.training else x


def _assert_carried_out(tmp_path: Path) -> None:
    command = ["npx", "vitest", "run", "test/trainer/cases.test.ts", "--reporter=json"]
    environment = os.environ | {"APPORTION_CASES": str(tmp_path)}
    done = subprocess.run(command, cwd=WEB, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert '"case is carried out as natively","status":"passed"' in done.stdout.replace(", ", ",")
