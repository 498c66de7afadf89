"""The export cache: what was exported is not exported again, by this process or the next, unless its bytes are gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from coordinator.planning.artifacts import Artifacts
from coordinator.rounds.metrics import forms_of_layers
from coordinator.submodels.record import Cut, LayerCut, cut_digest
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.manifest import ArtifactFile, ArtifactManifest
from export.forms.step_form import PLAIN, StepForm
from tests.contracts.samples import MANIFEST

pytestmark = pytest.mark.slow

WHOLE: Cut = {}
FROZEN: Cut = {"fc1": LayerCut(frozen=True)}
PROGRAM = DeviceProgram()


class FileExporter:
    """Writes a manifest and one file that say what was asked for."""

    def __init__(self) -> None:
        self.exported: list[str] = []
        self.announces = ""

    def key(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> str:
        return hashlib.sha256(f"{cut_digest(cut)}{program}{runtime}{form.name}".encode()).hexdigest()

    def unable(self, program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        return ()

    def refused_form(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> str:
        return f"{form.name} is refused" if runtime == "onnxruntime_training" else ""

    def export(
        self, cut: Cut, program: DeviceProgram, runtime: str, out_dir: Path, form: StepForm = PLAIN
    ) -> ArtifactManifest:
        key = self.key(cut, program, runtime, form)
        self.exported.append(key)
        data = f"graph of {key}".encode()
        digest = self.announces or hashlib.sha256(data).hexdigest()
        programs = (msgspec.structs.replace(MANIFEST.programs[0], file="train.onnx"),)
        manifest = msgspec.structs.replace(
            MANIFEST, files=(ArtifactFile("train.onnx", digest, len(data)),), programs=programs, export_key=key
        )
        out_dir.mkdir()
        (out_dir / "train.onnx").write_bytes(data)
        (out_dir / "manifest.json").write_bytes(manifest.to_bytes())
        return manifest


@dataclass
class Cache:
    ledger: Ledger
    blobs: BlobStore
    exporter: FileExporter

    def open(self) -> Artifacts:
        """As a process that has just started."""
        return Artifacts(self.exporter, self.ledger, self.blobs)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        yield Cache(ledger, BlobStore(tmp_path / "blobs"), FileExporter())


def test_get_exports_once(cache: Cache) -> None:
    artifacts = cache.open()
    first = artifacts.get(WHOLE, PROGRAM, "onnxruntime")
    assert artifacts.get(WHOLE, PROGRAM, "onnxruntime") == first
    assert len(cache.exporter.exported) == artifacts.exports == 1


def test_get_exports_every_form_once(cache: Cache) -> None:
    artifacts = cache.open()
    forms = (PLAIN, StepForm(4), StepForm(recompute=True), StepForm(4, recompute=True))
    digests = {artifacts.get(WHOLE, PROGRAM, "onnxruntime", form).ref.digest for form in forms * 2}
    assert len(digests) == len(cache.exporter.exported) == 4


def test_refused_form_exports_nothing(cache: Cache) -> None:
    artifacts = cache.open()
    assert artifacts.refused_form(WHOLE, PROGRAM, "onnxruntime_training", StepForm(4)) == "micro:4 is refused"
    assert not artifacts.refused_form(WHOLE, PROGRAM, "onnxruntime", StepForm(4))
    assert not cache.exporter.exported


def test_get_in_a_later_process_exports_nothing(cache: Cache) -> None:
    first = cache.open().get(WHOLE, PROGRAM, "onnxruntime")
    later = cache.open()
    assert later.get(WHOLE, PROGRAM, "onnxruntime") == first
    assert later.exports == 0
    assert len(cache.exporter.exported) == 1


def test_get_after_rounds_were_released_exports_nothing(cache: Cache) -> None:
    cache.open().get(WHOLE, PROGRAM, "onnxruntime")
    assert cache.ledger.blobs.release(before_round=9) == ()
    later = cache.open()
    later.get(WHOLE, PROGRAM, "onnxruntime")
    assert later.exports == 0


@pytest.mark.parametrize(
    ("cut", "program", "runtime"),
    [(FROZEN, PROGRAM, "onnxruntime"), (WHOLE, DeviceProgram(norm="batch"), "onnxruntime"), (WHOLE, PROGRAM, "other")],
    ids=["cut", "program", "runtime"],
)
def test_get_of_another_step_is_another_artifact(cache: Cache, cut: Cut, program: DeviceProgram, runtime: str) -> None:
    artifacts = cache.open()
    assert artifacts.get(WHOLE, PROGRAM, "onnxruntime").ref != artifacts.get(cut, program, runtime).ref
    assert artifacts.exports == 2


def test_artifact_is_whole_in_store_and_ledger(cache: Cache) -> None:
    artifact = cache.open().get(WHOLE, PROGRAM, "onnxruntime")
    digests = {artifact.ref.digest, artifact.manifest.files[0].sha256}
    assert cache.ledger.blobs.sizes().keys() == digests == set(cache.blobs.digests())
    assert ArtifactManifest.from_bytes(cache.blobs.read(artifact.ref.digest)) == artifact.manifest
    assert artifact.ref.size == len(artifact.manifest.to_bytes())
    assert cache.open().load(artifact.ref.digest) == artifact


@pytest.mark.parametrize("lost", ["manifest", "file"])
def test_blob_that_is_gone_is_exported_again_to_the_same_digest(cache: Cache, lost: str) -> None:
    artifacts = cache.open()
    first = artifacts.get(WHOLE, PROGRAM, "onnxruntime")
    cache.blobs.delete(first.ref.digest if lost == "manifest" else first.manifest.files[0].sha256)
    for same in (artifacts, cache.open()):
        assert same.get(WHOLE, PROGRAM, "onnxruntime") == first
    assert len(cache.exporter.exported) == 2
    cache.blobs.verify(first.manifest.files[0].sha256)


@pytest.mark.parametrize("damage", ["gone", "another byte"])
def test_manifest_that_is_damaged_is_told_with_its_mending_and_costs_a_round_its_figure_only(
    cache: Cache, damage: str
) -> None:
    digest = cache.open().get(WHOLE, PROGRAM, "onnxruntime").ref.digest
    blobs = cache.blobs  # which has seen it whole
    if damage == "gone":
        blobs.delete(digest)
    else:
        path = blobs.path(digest)
        path.write_bytes(path.read_bytes()[:-1] + b" ")
    artifacts = Artifacts(cache.exporter, cache.ledger, blobs)
    with pytest.raises(ArtifactCorrupt, match=f"blob {digest[:12]}") as caught:
        artifacts.load(digest)
    assert "fsck" in f"{caught.value} {caught.value.hint}"
    federation = SimpleNamespace(artifacts=artifacts)
    update = SimpleNamespace(assignment=SimpleNamespace(artifact_digest=digest, device="pi-1"))
    assert forms_of_layers(federation, [update]) == {}  # type: ignore[arg-type, list-item]


def test_file_of_another_digest_than_the_manifest_says_is_refused(cache: Cache) -> None:
    cache.exporter.announces = "d" * 64
    with pytest.raises(ArtifactCorrupt, match=r"export: train.onnx has digest [0-9a-f]{12}, manifest says d{12}"):
        cache.open().get(WHOLE, PROGRAM, "onnxruntime")
    key = cache.exporter.key(WHOLE, PROGRAM, "onnxruntime")
    assert cache.ledger.artifacts.find(key) is None


def test_write_folder_gives_what_verify_reads(cache: Cache, tmp_path: Path) -> None:
    artifacts = cache.open()
    artifact = artifacts.get(WHOLE, PROGRAM, "onnxruntime")
    artifacts.write_folder(artifact, tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").read_bytes() == artifact.manifest.to_bytes()
    assert (tmp_path / "out" / "train.onnx").read_bytes().startswith(b"graph of ")
