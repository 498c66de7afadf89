"""The browser's artifacts: native graphs with a memory of their own."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace

from edge.contracts.errors import ConfigError
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import KNOWN, RUNTIMES, runtime
from edge.runtimes.checking import checking_runtime
from edge.training.artifact_folder import self_test_folder
from export.bundle import export_artifact, verify_artifact
from export.formats import format_for
from export.formats.web_graph import for_web
from export.memory_plan import MemoryPlan
from export.training_step import StepSpec
from tests.export.test_micro_batches import WHOLE, GroupNet

pytestmark = pytest.mark.runtime

NAME = "onnxruntime_web"
MB = 1 << 20


def _exported(folder: Path, spec: StepSpec, name: str = NAME) -> ArtifactManifest:
    torch.manual_seed(0)
    return export_artifact(GroupNet(), spec, folder, runtime=name)


@pytest.mark.slow
def test_graphs_are_the_native_ones_rewritten_and_are_verified_here(tmp_path: Path) -> None:
    spec = replace(WHOLE, micro_batches=1)
    web, native = _exported(tmp_path / "web", spec), _exported(tmp_path / "native", spec, "onnxruntime")
    in_turns = tuple(replace(program, in_place=UNSET) for program in native.programs)
    assert (web.programs, web.tensors) == (in_turns, native.tensors)
    for program in native.programs:
        expected = for_web(onnx.load(tmp_path / "native" / program.file))
        assert (tmp_path / "web" / program.file).read_bytes() == expected.SerializeToString(deterministic=True)
    assert web.export_key != native.export_key
    assert (web.runtime, web.minimum_runtime_version) == (NAME, "1.30.0")
    assert web.cost.predicted_peak_bytes != native.cost.predicted_peak_bytes
    torch.manual_seed(0)
    assert verify_artifact(tmp_path / "web", GroupNet()) == web.parity
    result = self_test_folder(tmp_path / "web")
    assert result.runtime == NAME
    assert result.loss_rel_err <= web.self_test.rel_tolerance


def test_no_agent_of_python_trains_it() -> None:
    assert set(KNOWN) - set(RUNTIMES) == {NAME}
    with pytest.raises(ConfigError, match="'onnxruntime_web' is unknown"):
        runtime(NAME)
    assert checking_runtime(NAME) is runtime("onnxruntime")
    assert checking_runtime("onnxruntime") is runtime("onnxruntime")


def test_predicted_peak_grows_as_the_memory_of_the_runtime_does() -> None:
    def predicted(intermediate: int, *, state: int = 0) -> int:
        plan = MemoryPlan(state=state, written=0, batch=0, intermediate=intermediate, peak_node="")
        return format_for(NAME).predicted_peak_bytes(plan)

    assert predicted(0) == 0
    assert predicted(1) == predicted(3 * MB) == pytest.approx(0.2 * 16 * MB, abs=MB)
    assert predicted(4 * MB) == pytest.approx((1.44 - 1) * 16 * MB, abs=MB)
    # Large memories grow by 96 MiB at most; files as large as the state lie beside.
    assert predicted(1001 * MB) - predicted(900 * MB) in (96 * MB, 192 * MB)
    assert predicted(0, state=MB) - MB == predicted(MB)
