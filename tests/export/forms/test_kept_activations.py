"""Activations kept in float16: half the memory, the gradient of rounded activations on the runtimes' own sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.errors import ExportRefused, ParityError
from edge.contracts.manifest import InputSpec
from export.bundle import export_artifact
from export.form_refusal import check_form, refused_form
from export.formats import format_for
from export.forms.kept_activations import NARROWED, OPERATORS, WIDENED
from export.forms.step_form import PLAIN, StepForm, form_named, in_form
from export.gate_values import gate_values
from export.programs import capture_programs
from export.reference import ReferenceStep
from export.rounding_check import TOLERANCE, check_rounding
from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees
from tests.export.forms.test_recomputation import STEP, Residual

pytestmark = pytest.mark.runtime
KEEP = StepForm(keep="float16")
KEPT = in_form(STEP, KEEP)


class Pooled(nn.Module):
    """Pooling by maxima after a ReLU, over windows that overlap, and a head of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.first(x)))
        return self.head(self.pool(torch.relu(self.second(x))))


class Attending(nn.Module):
    """A transformer block over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 2, 2)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Flattened(nn.Sequential):
    """Images, channels last on a device, that a linear layer reads in torch's order."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5)
        )


class Offset(nn.Module):
    """A batch norm over values whose mean is some thousand times their deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(192, 64), nn.BatchNorm1d(64), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.first(x.flatten(1)) + 3000.0)))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch"])
@pytest.mark.parametrize("module", [Residual, Pooled, Attending, Flattened])
def test_gradients_are_those_of_rounded_activations(module: type[nn.Module], runtime: str, tmp_path: Path) -> None:
    manifest = export_artifact(module(), KEPT, tmp_path / "artifact", runtime=runtime)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "share"), [("onnxruntime", 0.8), ("executorch", 0.7)])
def test_activations_take_half_the_memory(runtime: str, share: float) -> None:
    larger = msgspec.structs.replace(STEP, input=InputSpec(layout="chw", shape=(3, 16, 16)))
    plain, kept = (
        format_for(runtime).write(Residual(), in_form(larger, form)).memory.intermediate for form in (PLAIN, KEEP)
    )
    assert kept < share * plain


@pytest.mark.slow
def test_gate_refuses_a_graph_that_rounds_otherwise_than_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from export.formats.onnx_step.translation import OPERATORS as TABLE

    def to_whole_numbers(t: Any, _: Any, x: Any) -> str:
        return str(t.make.node("Cast", t.make.node("Round", t.value(x)), to=10))

    monkeypatch.setitem(TABLE, "apportion_forms.narrowed", to_whole_numbers)
    exporter = format_for("onnxruntime")
    written = exporter.write(Residual(), KEPT)
    with pytest.raises(ParityError, match="gradients of one step"):
        exporter.check(Residual(), KEPT, written.files, written.programs, written.tensors)


@pytest.mark.slow
def test_what_several_operations_save_is_narrowed_once_and_no_statistics_are() -> None:
    graph = capture_programs(Residual(), KEPT)["train"].graph.graph
    narrowed = graph.find_nodes(op="call_function", target=NARROWED)
    assert len({node.args[0] for node in narrowed}) == len(narrowed)
    # Inputs of convolutions, but for the batch itself, of batch norms and of the head, and what the last ReLU gives.
    assert len(narrowed) == 6 + 6 + 1 + 1
    assert all(len(node.meta["val"].shape) == 4 for node in narrowed[:-1])
    assert len(graph.find_nodes(op="call_function", target=WIDENED)) > len(narrowed)


@pytest.mark.slow
def test_rounding_is_small_and_a_network_it_would_harm_is_refused() -> None:
    torch.manual_seed(0)
    for module, is_harmed in ((Residual(), False), (Offset(), True)):
        values = gate_values(KEPT, format_for("onnxruntime").write(module, KEPT).tensors)
        rounded = ReferenceStep(module, KEPT, values, torch.float64).run(1, states=False).gradients
        if is_harmed:
            with pytest.raises(ParityError, match=r"kept in float16, are .* from those of whole activations; 0.03 is"):
                check_rounding(module, KEPT, values, rounded)
        else:
            assert 1e-5 < check_rounding(module, KEPT, values, rounded) < TOLERANCE / 10
            whole = ReferenceStep(module, STEP, values, torch.float64).run(1, states=False)
            assert check_rounding(module, KEPT, values, whole.gradients) == 0


def test_values_are_rounded_as_numpy_does_and_stay_in_range(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    plain = np.concatenate([
        draws.normal(size=3000), draws.normal(size=1000) * 1e-6, draws.normal(size=500) * 3e4,
        [0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e9, -1e9, np.inf, -np.inf, 2.0**-24, 2.0**-25, 1.0 + 2.0**-11],
    ]).astype(np.float32)  # fmt: skip
    x = torch.from_numpy(plain)
    with np.errstate(over="ignore"):
        wanted = np.clip(plain, -65504, 65504).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(OPERATORS.widened(OPERATORS.narrowed(x)).numpy(), wanted)
    kernels = assert_rewrite_agrees(lambda x: [WIDENED(NARROWED(x))], [x], tmp_path, tolerance=0)
    assert kernels == {"apportion_native::narrowed.out", "apportion_native::widened.out"}


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    from edge.runtimes.executorch.library import NativeProgram
    from export.formats.executorch_program.lowering import lower
    from tests.export.executorch.executorch_rewritten import traced

    x = torch.tensor([1.0, float("nan"), -2.0] * 9)
    program = traced(lambda x: [WIDENED(NARROWED(x))], [x])
    path = tmp_path / "program.pte"
    path.write_bytes(lower(program, program.outputs, batch=1).data)
    native = NativeProgram(path)
    native.run([x.numpy()])
    np.testing.assert_array_equal(native.output(0, (27,)), x.numpy())


def test_steps_that_cannot_keep_float16_are_refused_with_the_reason() -> None:
    recurrent = nn.Sequential(nn.LSTM(4, 4, batch_first=True))
    assert "layer '0': LSTM is one operation with values of its own" in refused_form(recurrent, KEPT, "executorch")
    both = msgspec.structs.replace(KEPT, recompute=True)
    assert "cannot both be kept in float16 and computed again" in refused_form(Residual(), both, "executorch")
    for runtime in ("onnxruntime_training", "onnxruntime_web"):
        assert f"{runtime} cannot carry activations kept in float16" in refused_form(Residual(), KEPT, runtime)
    assert not refused_form(Residual(), KEPT, "executorch")
    with pytest.raises(ExportRefused, match="activations cannot both"):
        check_form(Residual(), both, "onnxruntime")


def test_form_has_a_name_that_can_be_read_back() -> None:
    for name in ("keep:float16", "micro:4+keep:float16"):
        assert form_named(name).name == name
    assert form_named("micro:4+keep:float16") == StepForm(4, keep="float16")
