"""Every ready task, and a loss that nobody listed, through the parity gate of every runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.contracts.errors import ExportRefused
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import runtime
from edge.training.self_test import check_self_test
from export.bundle import export_artifact, verify_artifact
from tests.export.tasks.models import CASES

RUNTIMES = ["onnxruntime", "onnxruntime_training", "executorch"]


def test_a_task_goes_through_the_gate(tmp_path: Path) -> None:
    """Regression on stock ONNX Runtime; the rest is slow."""
    case = CASES["regression"]
    manifest = export_artifact(case.build(), case.step(), tmp_path / "artifact")
    assert (manifest.task, manifest.classes) == ("regression", ("0", "1"))
    assert [spec.name for spec in manifest.specs("target")] == ["target"]
    assert [spec.name for spec in manifest.specs("metric")] == ["sum:squares", "sum:absolute", "sum:values", "logits"]
    assert manifest.parity.max_grad_rel_err < 1e-5
    assert ArtifactManifest.from_bytes(manifest.to_bytes()).to_bytes() == manifest.to_bytes()
    files = {file.name: tmp_path / "artifact" / file.name for file in manifest.files}
    session = runtime("onnxruntime").load(manifest, files, threads=1)
    assert check_self_test(session, manifest, steps=3) <= manifest.self_test.rel_tolerance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "name"),
    # CTC's recursion takes ExecuTorch's exporter a minute and a half.
    [(chosen, name) for chosen in RUNTIMES for name in sorted(CASES) if (chosen, name) != ("executorch", "ctc")],
)
def test_every_task_trains_on_every_runtime(name: str, chosen: str, tmp_path: Path) -> None:
    case = CASES[name]
    if chosen == "onnxruntime_training" and not Path(".venv-onnxruntime-training/bin/python").exists():
        pytest.skip("no environment of onnxruntime-training; make runtime-onnxruntime-training makes it")
    manifest = export_artifact(case.build(), case.step(), tmp_path / "artifact", runtime=chosen)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    assert np.all(np.isfinite(manifest.self_test.losses))
    assert verify_artifact(tmp_path / "artifact", case.build()).max_grad_rel_err <= manifest.parity.tolerance


@pytest.mark.slow
def test_a_task_goes_by_micro_batches_and_recomputation(tmp_path: Path) -> None:
    case = CASES["autoencoder"]
    manifest = export_artifact(case.build(), case.step(micro_batches=2, recompute=True), tmp_path / "artifact")
    assert manifest.micro_batches == 2


def test_browsers_are_refused_with_the_reason(tmp_path: Path) -> None:
    case = CASES["regression"]
    with pytest.raises(ExportRefused, match="onnxruntime_web cannot carry a task of one's own batch and loss"):
        export_artifact(case.build(), case.step(), tmp_path / "artifact", runtime="onnxruntime_web")
