"""Devices whose runtime the run does not allow, or cannot export for: named with the reason, and the round goes on.

Their artifacts are those of onnxruntime under another name, so that nothing needs to be installed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from coordinator.exporting.cut_exporter import CutExporter
from coordinator.planning.artifacts import Artifacts, Exporter
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ExportRefused, PlanError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import WorkOrder
from export.forms.step_form import PLAIN, StepForm
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text, with_convolutions

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

BOTH = ("onnxruntime", "executorch")


class RefusingExporter:
    """Exports for onnxruntime and refuses any other runtime; counts how often it was asked for one."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self.refused = 0

    def key(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> str:
        return self._exporter.key(cut, program, "onnxruntime", form) + runtime

    def unable(self, program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        return self._exporter.unable(program, runtime)

    def refused_form(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> str:
        return self._exporter.refused_form(cut, program, runtime, form)

    def export(
        self, cut: Cut, program: DeviceProgram, runtime: str, out_dir: Path, form: StepForm = PLAIN
    ) -> ArtifactManifest:
        if runtime != "onnxruntime":
            self.refused += 1
            raise ExportRefused("fc1", "no such kernel", instead="another layer")
        return self._exporter.export(cut, program, runtime, out_dir, form)


class ExporterWithoutStatistics(RefusingExporter):
    """Artifacts for any runtime, with a ``stats`` program on onnxruntime only."""

    def export(
        self, cut: Cut, program: DeviceProgram, runtime: str, out_dir: Path, form: StepForm = PLAIN
    ) -> ArtifactManifest:
        manifest = self._exporter.export(cut, program, "onnxruntime", out_dir, form)
        if runtime != "onnxruntime":
            kept = tuple(p for p in manifest.programs if p.name != "stats")
            manifest = msgspec.structs.replace(manifest, runtime=runtime, programs=kept)
            (out_dir / "manifest.json").write_bytes(manifest.to_bytes())
        return manifest


def device(stage: InProcessFederation, name: str, runtime: str) -> HostileDevice:
    """A device that follows the protocol and does not train."""

    def finish(order: WorkOrder) -> None:
        found.finish(order)

    found = HostileDevice(stage.broker, stage.name, name, finish, runtime=runtime)
    return found


def export_with(stage: InProcessFederation, exporter: Exporter) -> None:
    """From now on artifacts come from ``exporter``."""
    federation = stage.federation
    stage.federation = replace(federation, artifacts=Artifacts(exporter, federation.ledger, federation.blobs))


def test_device_without_a_runtime_of_the_run_is_named_and_the_round_goes_on(tmp_path: Path, exports: Path) -> None:
    with (
        InProcessFederation(tmp_path, exports, config_text(local=0, min_reports=2, rounds=1)) as stage,
        device(stage, "pi-1", "onnxruntime"),
        device(stage, "pi-2", "onnxruntime"),
        device(stage, "board", "executorch"),
    ):
        stage.run()
        assert stage.committed() == [(0, 0, ["pi-1", "pi-2"])]
        (line,) = stage.lines.having("board", "the run allows")
    assert "device board: has executorch, the run allows onnxruntime; install one of those on the device" in line


def test_runtime_that_cannot_train_the_model_is_named_and_its_devices_stay_away(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, min_reports=2, rounds=2, runtimes=BOTH)
    with (
        InProcessFederation(tmp_path, exports, text) as stage,
        device(stage, "pi-1", "onnxruntime"),
        device(stage, "pi-2", "onnxruntime"),
        device(stage, "board", "executorch"),
    ):
        exporter = RefusingExporter(CutExporter(stage.config))
        export_with(stage, exporter)
        stage.run()
        assert [devices for _, _, devices in stage.committed()] == [["pi-1", "pi-2"]] * 2
        lines = stage.lines.having("board", "no artifact for its runtime 'executorch'")
    assert len(lines) == 2
    assert "layer 'fc1': no such kernel; use another layer instead" in lines[0]
    assert exporter.refused == 1  # one export was tried for both rounds


def test_only_runtime_that_cannot_train_the_model_ends_the_run_with_the_layer(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=1, min_reports=1, rounds=1, runtimes=("executorch",))
    with InProcessFederation(tmp_path, exports, text) as stage, device(stage, "board", "executorch"):
        export_with(stage, RefusingExporter(CutExporter(stage.config)))
        with pytest.raises(ExportRefused, match="layer 'fc1': no such kernel"):
            stage.run()


def test_first_device_to_come_shows_that_the_only_runtime_cannot_train_the_model(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=3, rounds=1, runtimes=("executorch",), join_timeout_s=600.0)
    board: list[HostileDevice] = []

    def come_late() -> None:
        board.append(device(stage, "board", "executorch"))
        board[0].__enter__()

    with InProcessFederation(tmp_path, exports, text) as stage:
        export_with(stage, RefusingExporter(CutExporter(stage.config)))
        threading.Timer(0.3, come_late).start()
        started = time.monotonic()
        # The two others are not awaited for ten minutes before anybody is told.
        with pytest.raises(ExportRefused, match="layer 'fc1': no such kernel"):
            stage.run()
        assert time.monotonic() - started < 30
        board[0].__exit__(None, None, None)


def test_statistics_come_from_the_devices_that_can_gather_them(tmp_path: Path, exports: Path) -> None:
    text = with_convolutions(config_text(local=0, rounds=1, runtimes=BOTH))
    with (
        InProcessFederation(tmp_path, exports, text) as stage,
        device(stage, "board-1", "executorch"),
        device(stage, "board-2", "executorch"),
        device(stage, "pi-1", "onnxruntime"),
    ):
        export_with(stage, ExporterWithoutStatistics(CutExporter(stage.config)))
        stage.run()
        # Three reports are needed of a round of three devices, one of a round that only one can take part in.
        assert [devices for _, _, devices in stage.committed()] == [["board-1", "board-2", "pi-1"], ["pi-1"]]
        assert len(stage.lines.having("no 'stats' program on executorch; left out")) == 2


def test_too_few_devices_with_a_runtime_of_the_run_stop_it_with_their_reason(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, min_reports=2, rounds=1, runtimes=BOTH)
    with (
        InProcessFederation(tmp_path, exports, text) as stage,
        device(stage, "pi-1", "onnxruntime"),
        device(stage, "board-1", "executorch"),
        device(stage, "board-2", "executorch"),
    ):
        export_with(stage, RefusingExporter(CutExporter(stage.config)))
        with pytest.raises(PlanError, match=r"1 of 3 devices can take part, cohort.min-reports is 2"):
            stage.run()
