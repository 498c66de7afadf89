"""Training programs of a part of a module: nested widths and one atom of several, gated and kept inside their part."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edge.contracts.errors import ExportRefused, ParityError
from edge.contracts.manifest import InputSpec
from edge.contracts.tensors import STATE_ROLES
from export.bundle import export_artifact, read_artifact
from export.gate_values import gate_values
from export.graph_session import GraphSession
from export.parity import check_parity
from export.training_step import Optimizer, StepSpec, Variant

STEP = StepSpec(input=InputSpec(layout="chw", shape=(3, 6, 6)), classes=4, batch=6)
HALF = (
    ("0.weight", (4, 3, 3, 3)),
    ("1.weight", (4,)),
    ("1.bias", (4,)),
    ("1.running_mean", (4,)),
    ("1.running_var", (4,)),
    ("3.weight", (4, 1, 3, 3)),
    ("5.weight", (4, 144)),
)


def net() -> nn.Module:
    """Convolution, norm, depthwise convolution, classifier on a flattened map."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        nn.Flatten(),
        nn.Linear(8 * 36, 4),
    )


class Atoms(nn.Module):
    """Two small networks and the mean of their logits."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.ModuleList([nn.Sequential(nn.Flatten(), nn.Linear(108, 5), nn.Linear(5, 4)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return (self.atoms[0](x) + self.atoms[1](x)) / 2


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["running", "batch"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_narrow_variant_moves_its_part_as_torch_moves_the_narrow_module(tmp_path: Path, norm: str, kind: str) -> None:
    sizes = HALF if norm == "running" else tuple(entry for entry in HALF if "running" not in entry[0])
    spec = msgspec.structs.replace(
        STEP, norm=norm, optimizer=Optimizer(kind=kind), clip_norm=True, variants=(Variant("half", sizes),)
    )
    manifest = export_artifact(net(), spec, tmp_path / "artifact")
    assert {p.name for p in manifest.programs} >= {"train", "train_half", "eval"}
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance

    _, files = read_artifact(tmp_path / "artifact")
    values = gate_values(spec, manifest.tensors)
    outputs = GraphSession(files["train_half.onnx"]).run(values)
    moved = {n.removeprefix("next:"): v for n, v in outputs.items() if n.startswith("next:")}
    weight, slot = moved["0.weight"], moved[f"0.weight#{spec.optimizer.slots[0]}"]
    assert np.array_equal(weight[4:], values["0.weight"][4:])
    assert not np.array_equal(weight[:4], values["0.weight"][:4])
    assert not slot[4:].any()
    assert slot[:4].any()
    assert np.array_equal(moved["5.weight"][:, 144:], values["5.weight"][:, 144:])


def test_atom_variant_writes_only_its_own_tensors(tmp_path: Path) -> None:
    variants = (Variant("", submodule="atoms.0"), Variant("1", submodule="atoms.1"))
    manifest = export_artifact(Atoms(), msgspec.structs.replace(STEP, variants=variants), tmp_path / "artifact")
    for name, atom in (("train", "atoms.0."), ("train_1", "atoms.1.")):
        program = manifest.program(name)
        state = [n for n in program.inputs if manifest.tensor(n).role in STATE_ROLES]
        assert state
        assert all(n.startswith(atom) for n in state)
    assert {n for n in manifest.program("eval").inputs if n.startswith("atoms.1.")}


@pytest.mark.slow
def test_gate_refuses_a_variant_that_moves_what_it_does_not_hold() -> None:
    spec = msgspec.structs.replace(STEP, variants=(Variant("half", HALF),))
    from export.formats.onnx_step.format import OnnxStep

    written = OnnxStep().write(net(), spec)
    programs = {p.name: written.files[p.file] for p in written.programs}
    whole = check_parity(net(), spec, programs, written.tensors)
    assert whole.max_grad_rel_err <= whole.tolerance
    wrong = {**programs, "train_half": programs["train"]}
    with pytest.raises(ParityError):
        check_parity(net(), spec, wrong, written.tensors)


def test_layer_that_cannot_be_narrowed_is_refused_by_name(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(288, 4))
    spec = msgspec.structs.replace(STEP, variants=(Variant("half", (("1.weight", (4,)), ("1.bias", (4,)))),))
    with pytest.raises(ExportRefused, match=r"1.*GroupNorm cannot be narrowed"):
        export_artifact(module, spec, tmp_path / "artifact")


@pytest.mark.parametrize("feature", [{"probe": True}])
def test_format_without_a_feature_refuses_before_tracing(tmp_path: Path, feature: dict[str, object]) -> None:
    with pytest.raises(ExportRefused, match="runtime onnxruntime"):
        export_artifact(net(), msgspec.structs.replace(STEP, **feature), tmp_path / "artifact", runtime="executorch")
