"""Training programs of a part of a module on ExecuTorch: gated, and moving nothing outside their part."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.tensors import STATE_ROLES
from edge.runtimes.leading_parts import FILE_NAME, parts_from_bytes
from export.bundle import export_artifact, read_artifact
from export.formats.executorch_program.gate_run import GateRun
from export.gate_values import gate_values
from export.training_step import Optimizer, StepSpec, Variant
from tests.export.test_variants import HALF, STEP, Atoms, net

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def step(**changes: object) -> StepSpec:
    return msgspec.structs.replace(STEP, **changes)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_narrow_variant_passes_the_gate_and_leaves_the_rest_alone(kind: str, tmp_path: Path) -> None:
    spec = step(optimizer=Optimizer(kind=kind), clip_norm=True, variants=(Variant("half", HALF),))
    folder = tmp_path / "artifact"
    manifest = export_artifact(net(), spec, folder, runtime="executorch")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    _, files = read_artifact(folder)
    assert parts_from_bytes(files[FILE_NAME]) == {"train_half": dict(HALF)}

    values = gate_values(spec, manifest.tensors)
    slot = f"0.weight#{spec.optimizer.slots[0]}"
    paths = {name: folder / name for name in files}
    moved = GateRun("train_half", manifest.programs, manifest.tensors, paths, batch=spec.batch).run(values)
    assert np.array_equal(moved["next:0.weight"][4:], values["0.weight"][4:])
    assert not np.array_equal(moved["next:0.weight"][:4], values["0.weight"][:4])
    assert np.array_equal(moved[f"next:{slot}"][4:], values[slot][4:])
    assert not np.array_equal(moved[f"next:{slot}"][:4], values[slot][:4])
    assert np.array_equal(moved["next:5.weight"][:, 144:], values["5.weight"][:, 144:])


def test_atoms_with_a_teacher_pass_the_gate_and_take_their_own_tensors_only(tmp_path: Path) -> None:
    variants = tuple(Variant(str(i), submodule=f"atoms.{i}") for i in range(2))
    spec = step(distillation=True, variants=variants)
    manifest = export_artifact(Atoms(), spec, tmp_path / "artifact", runtime="executorch")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    for i in range(2):
        state = [n for n in manifest.program(f"train_{i}").inputs if manifest.tensor(n).role in STATE_ROLES]
        assert state
        assert all(name.startswith(f"atoms.{i}.") for name in state)
