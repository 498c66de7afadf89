"""Exports are kept for a whole test run: most tests ask for one that another has asked for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import CutExporter
from coordinator.planning.estimate import CountedStep
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram
from edge.contracts.manifest import ArtifactManifest
from export.forms.step_form import PLAIN, StepForm

EXPORTS_VARIABLE = "APPORTION_TEST_EXPORTS"
"""Names the folder to the processes of a test that run a coordinator."""


class RememberingExporter:
    """A :class:`CutExporter` that finds what an earlier test, of whichever process, exported in ``folder``."""

    def __init__(self, exporter: CutExporter, folder: Path) -> None:
        self._exporter = exporter
        self._folder = folder

    def key(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> str:
        return self._exporter.key(cut, program, runtime, form)

    def unable(self, program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        return self._exporter.unable(program, runtime)

    def counted(self, cut: Cut, program: DeviceProgram, runtime: str) -> CountedStep | None:
        return self._exporter.counted(cut, program, runtime)

    def refused_form(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> str:
        return self._exporter.refused_form(cut, program, runtime, form)

    def export(
        self, cut: Cut, program: DeviceProgram, runtime: str, out_dir: Path, form: StepForm = PLAIN
    ) -> ArtifactManifest:
        kept, manifest = self.kept(cut, program, runtime, form)
        shutil.copytree(kept, out_dir)
        return manifest

    def kept(
        self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN
    ) -> tuple[Path, ArtifactManifest]:
        """The folder that stays, and its manifest."""
        kept = self._folder / self.key(cut, program, runtime, form)
        self._folder.mkdir(parents=True, exist_ok=True)
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                made = kept.with_suffix(".new")  # a refused export leaves no folder that looks whole
                shutil.rmtree(made, ignore_errors=True)
                self._exporter.export(cut, program, runtime, made, form)
                made.rename(kept)
        return kept, ArtifactManifest.from_bytes((kept / "manifest.json").read_bytes())


def remembering_exporter(config: RunConfig) -> RememberingExporter:
    """Takes the place of :class:`CutExporter` where a run is put together."""
    return RememberingExporter(CutExporter(config), Path(os.environ[EXPORTS_VARIABLE]))


@contextlib.contextmanager
def runs_share(folder: Path) -> Iterator[None]:
    """Whole runs of this process take from ``folder``; those of others that it starts ask for
    :func:`remembering_exporter`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EXPORTS_VARIABLE, str(folder))
        patch.setattr("coordinator.cli.open_run.CutExporter", remembering_exporter)
        yield
