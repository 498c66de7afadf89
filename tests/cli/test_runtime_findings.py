"""What ``doctor`` says about the runtimes of a run file: where their trainers start, and what a run would lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.runtime_findings import runtime_findings
from coordinator.run_file.loading import load_config_text
from tests.federation.small_run import config_text

pytestmark = pytest.mark.runtime


def with_environment(text: str, runtime: str, folder: Path) -> str:
    """The run file ``text`` whose trainers of ``runtime`` run in ``folder``."""
    return text.replace("[runtime]\n", f'[runtime]\nenvironments = {{ {runtime} = "{folder}" }}\n')


def test_runtime_that_is_here_is_named_with_its_interpreter() -> None:
    (finding,) = runtime_findings(load_config_text(config_text()))
    assert (finding.name, finding.state) == ("runtime onnxruntime", "ok")
    assert "a trainer starts with " in finding.detail
    assert finding.detail.endswith("MB idle")


def test_local_devices_without_their_runtime_are_a_failure_with_what_to_run(tmp_path: Path) -> None:
    text = config_text(runtimes=("onnxruntime", "executorch"))
    here, missing = runtime_findings(load_config_text(with_environment(text, "executorch", tmp_path)))
    assert here.state == "ok"
    assert (missing.name, missing.state, missing.exit_code) == ("runtime executorch", "fail", 2)
    assert f"{tmp_path} has no bin/python" in missing.detail
    assert missing.fix.startswith("make runtime-executorch")


def test_runtime_of_devices_elsewhere_may_be_missing_here(tmp_path: Path) -> None:
    text = config_text(local=0, runtimes=("executorch",))
    (finding,) = runtime_findings(load_config_text(with_environment(text, "executorch", tmp_path)))
    assert finding.state == "warn"
    assert "not on this machine, devices bring their own" in finding.detail


def test_interpreter_without_the_runtime_is_told_with_how_its_trainer_ended(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    text = config_text(runtimes=("executorch",))
    (finding,) = runtime_findings(load_config_text(with_environment(text, "executorch", tmp_path)))
    assert finding.state == "fail"
    assert "a trainer with runtime 'executorch' does not start" in finding.detail
    assert "exit status 3" in finding.detail
