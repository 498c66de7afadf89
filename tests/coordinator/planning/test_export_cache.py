"""Artifacts kept across runs: taken when sound, made anew when not, whole in the sight of every reader."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from coordinator.planning.export_cache import MANIFEST, ExportCache
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ConfigError, ExportRefused
from edge.contracts.manifest import ArtifactManifest
from export.forms.step_form import PLAIN, StepForm
from tests.coordinator.planning.test_artifacts import FROZEN, PROGRAM, WHOLE, FileExporter

RUNTIME = "onnxruntime"


def kept(folder: Path) -> Path:
    (found,) = folder.glob("*/*/")
    return found


def export(
    cache: ExportCache, exporter: FileExporter, cut: Cut, out_dir: Path, form: StepForm = PLAIN
) -> ArtifactManifest:
    key = exporter.key(cut, PROGRAM, RUNTIME, form)
    return cache.get(key, out_dir, lambda: exporter.export(cut, PROGRAM, RUNTIME, out_dir, form))


def test_second_run_takes_what_the_first_exported(tmp_path: Path) -> None:
    exporter = FileExporter()
    first = ExportCache(tmp_path / "cache")
    made = export(first, exporter, WHOLE, tmp_path / "one")
    second = ExportCache(tmp_path / "cache")
    taken = export(second, exporter, WHOLE, tmp_path / "two")
    assert taken == made
    assert (first.taken, second.taken, len(exporter.exported)) == (0, 1, 1)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()} == files
    export(second, exporter, WHOLE, tmp_path / "three", StepForm(2))
    export(second, exporter, FROZEN, tmp_path / "four")
    assert len(exporter.exported) == 3


@pytest.mark.parametrize("damage", ["file", "manifest", "missing", "other"])
def test_damaged_artifact_is_exported_anew(damage: str, tmp_path: Path) -> None:
    exporter = FileExporter()
    cache = ExportCache(tmp_path / "cache")
    made = export(cache, exporter, WHOLE, tmp_path / "one")
    folder = kept(tmp_path / "cache")
    if damage == "file":
        (folder / "train.onnx").write_bytes(b"x" + (folder / "train.onnx").read_bytes()[1:])
    elif damage == "manifest":
        (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-20])
    elif damage == "missing":
        (folder / "train.onnx").unlink()
    else:
        other = FileExporter().export(FROZEN, PROGRAM, RUNTIME, tmp_path / "other")
        (folder / MANIFEST).write_bytes(other.to_bytes())
    assert export(cache, exporter, WHOLE, tmp_path / "two") == made
    assert (cache.taken, len(exporter.exported)) == (0, 2)
    assert export(cache, exporter, WHOLE, tmp_path / "three") == made
    assert cache.taken == 1


def _export(folder: str, number: int) -> None:
    cache, exporter = ExportCache(Path(folder) / "cache"), FileExporter()
    for turn in range(20):
        export(cache, exporter, WHOLE, Path(folder) / f"{number}-{turn}", StepForm(turn + 1))


def test_writers_at_the_same_time_leave_whole_artifacts_and_nothing_else(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_export, args=(str(tmp_path), number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    folders = list((tmp_path / "cache").glob("*/*"))
    assert len(folders) == 20
    for folder in folders:
        assert ArtifactManifest.from_bytes((folder / MANIFEST).read_bytes()).export_key == folder.name


class Refusing(FileExporter):
    def export(
        self, cut: Cut, program: DeviceProgram, runtime: str, out_dir: Path, form: StepForm = PLAIN
    ) -> ArtifactManifest:
        raise ExportRefused("fc1", "no such step", instead="another")


def test_refusal_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = ExportCache(tmp_path / "cache")
    with pytest.raises(ExportRefused):
        export(cache, Refusing(), WHOLE, tmp_path / "one")
    assert list((tmp_path / "cache").rglob("*")) == []


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"planner\.export-cache: .*/file/cache cannot be written"):
        ExportCache(tmp_path / "file" / "cache")
