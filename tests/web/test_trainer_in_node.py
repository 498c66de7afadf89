"""The browser's trainer, run by Node, gives what the native session gives for the same order and data."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from edge.artifact_folder import read_artifact_folder
from export.bundle import export_artifact
from export.gate_values import gate_hyper
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
    command = ["npx", "vitest", "run", "test/trainer/cases.test.ts", "--reporter=json"]
    environment = os.environ | {"APPORTION_CASES": str(tmp_path)}
    done = subprocess.run(command, cwd=WEB, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert '"case is carried out as natively","status":"passed"' in done.stdout.replace(", ", ",")
