"""Steps of one run with shorter windows and another base: the same factors, artifacts and bases of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.exporting.base_file import stored_base
from coordinator.exporting.cut_exporter import CutExporter, dense_module, rebuild_module
from coordinator.exporting.model_form import base_choices, in_model_form, whole_windows
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import ArtifactManifest
from export.bundle import verify_artifact
from export.forms.step_form import PLAIN, StepForm
from tests.language_models import run_text

TEXT = run_text() + '[planner]\nwindows = [4, 2]\nbases = ["float16"]\n'
CONFIG = load_config_text(TEXT)
OTHER = StepForm(micro_batches=2, window=4, base="float16")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="words", config="", seed=5) as made:
        yield made


def specs(manifest: ArtifactManifest, *roles: str) -> dict[str, tuple[object, ...]]:
    return {spec.name: spec.shape for spec in manifest.tensors if spec.role in roles}


@pytest.mark.slow
@pytest.mark.runtime
def test_the_factors_are_those_of_the_run_and_the_rest_is_the_forms(tmp_path: Path) -> None:
    exporter, method = CutExporter(CONFIG), method_of_run(CONFIG, dense_module(CONFIG))
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    program = method.program(cut)
    forms = {"run": PLAIN, "other": OTHER}
    made = {n: exporter.export(cut, program, "onnxruntime", tmp_path / n, form) for n, form in forms.items()}
    run, other = made["run"], made["other"]
    assert specs(run, "parameter", "frozen") == specs(other, "parameter", "frozen")
    assert (run.input.shape, other.input.shape, other.micro_batches) == ((8,), (4,), 2)
    assert other.tensor("embedding.weight").dtype == "float16"
    assert other.cost.live_bytes < run.cost.live_bytes
    assert run.export_key == exporter.key(cut, program, "onnxruntime")
    assert other.export_key == exporter.key(cut, program, "onnxruntime", OTHER)
    assert other.cost == exporter.written_cost(cut, program, "onnxruntime", OTHER)
    verify_artifact(tmp_path / "other", rebuild_module(other.build))


def test_each_precision_is_a_base_of_its_own(tmp_path: Path, ledger: Ledger) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    (own, own_bytes), (other, other_bytes) = base_choices(CONFIG)
    assert (own, other) == ("", "float16")
    bases = [stored_base(in_model_form(CONFIG, StepForm(base=base)), ledger, blobs) for base in (own, other)]
    assert [base.size for base in bases] == [own_bytes, other_bytes]
    assert bases[0].digest != bases[1].digest
    assert in_model_form(CONFIG, StepForm(4)) is CONFIG
    assert stored_base(in_model_form(CONFIG, StepForm(window=4)), ledger, blobs) == bases[0]


def test_examples_of_shorter_windows_weigh_by_their_symbols() -> None:
    assert [whole_windows(CONFIG, StepForm(window=w), 10) for w in (0, 4, 2)] == [10, 5, 2]
    assert whole_windows(CONFIG, StepForm(window=2), 1) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("windows = [4, 2]", "windows = [3]", r"\$\.planner\.windows: \[3\] given; each divides the run's window of 8"),
        ("windows = [4, 2]", "windows = [8]", r"\$\.planner\.windows: \[8\] given; each divides"),
        ("windows = [4, 2]", "windows = [2, 4]", "the longest first"),
        ('bases = ["float16"]', 'bases = ["int8"]', r"\$\.planner\.bases: .* without the run's own, int8"),
        ('bases = ["float16"]', 'bases = ["int2"]', r"different ones of float32, float16, int8, int4 expected"),
    ],
)
def test_windows_and_bases_that_cannot_be_are_named(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config_text(TEXT.replace(old, new))


def test_other_models_have_neither() -> None:
    from tests.federation.small_run import config_text

    with pytest.raises(ConfigError, match=r"\$\.planner\.windows: is of language models, and \w+ is none"):
        load_config_text(config_text() + "[planner]\nwindows = [4]\n")
