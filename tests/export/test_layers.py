"""Every supported layer family exports and passes the gate; some in ``test_layer_support.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.bundle import export_artifact
from export.training_step import StepSpec
from tests.export.modules import BODIES, CLASSES, with_head
from tests.export.test_layer_support import LAYERS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [n for n in BODIES if n not in LAYERS])
def test_layer_family_passes_the_gate(name: str, tmp_path: Path) -> None:
    module, spec = with_head(name)
    step = StepSpec(input=spec, classes=CLASSES, batch=6)
    manifest = export_artifact(module, step, tmp_path / "artifact")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance < 0.05
