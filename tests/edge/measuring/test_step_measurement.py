"""Steps measured in a child: figures of a real artifact, and what is said of a child that ends before it is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge.contracts.errors import ArtifactCorrupt, ConfigError, DeviceRefused
from edge.measuring.step_measurement import measure_steps, runtime_about
from tests.edge.tiny_artifact import BATCH, softmax_graph, softmax_manifest


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    folder = tmp_path / "artifact"
    folder.mkdir()
    graph = softmax_graph()
    (folder / "train.onnx").write_bytes(graph)
    (folder / "manifest.json").write_bytes(softmax_manifest(graph))
    return folder


def interpreter(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_steps_of_a_real_artifact_are_measured_in_a_child(artifact: Path) -> None:
    found = measure_steps(artifact, steps=5)
    assert (found.runtime, found.batch, found.threads, found.steps) == ("onnxruntime", BATCH, 1, 5)
    assert found.ended == ""
    assert 0 < found.step_ms_p50 <= found.step_ms_p95
    assert 20_000_000 < found.idle_bytes < found.peak_bytes < 400_000_000
    assert found.predicted_bytes == 1 << 20


def test_a_larger_batch_of_a_dynamic_graph_has_no_prediction(artifact: Path) -> None:
    found = measure_steps(artifact, batch=64, steps=3)
    assert (found.batch, found.predicted_bytes, found.ended) == (64, 0, "")


def test_a_child_killed_by_the_kernel_is_a_result(artifact: Path, tmp_path: Path) -> None:
    found = measure_steps(artifact, python=interpreter(tmp_path, "kill -9 $$"))
    assert found.ended.startswith("SIGKILL (killed, perhaps out of memory)")
    assert (found.steps, found.peak_bytes, found.is_killed) == (0, 0, True)


def test_a_child_over_its_limit_is_killed_at_it(artifact: Path) -> None:
    found = measure_steps(artifact, limit_bytes=24 << 20)
    assert found.ended.startswith(("killed at its limit of 24 MB", "refused memory at its limit of 24 MB"))
    assert (found.steps, found.is_killed) == (0, True)


def test_a_child_that_is_refused_memory_is_told_from_one_that_fails(artifact: Path, tmp_path: Path) -> None:
    script = interpreter(tmp_path, f'ulimit -v 90000; exec {sys.executable} "$@"')
    found = measure_steps(artifact, python=script)
    assert found.ended
    assert (found.steps, found.peak_bytes) == (0, 0)


def test_a_child_that_fails_says_why(artifact: Path, tmp_path: Path) -> None:
    found = measure_steps(artifact, python=interpreter(tmp_path, "echo no runtime here >&2; exit 3"))
    assert found.ended == "exit status 3: no runtime here"
    assert not found.is_killed


def test_what_cannot_be_measured_is_refused(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no artifact there"):
        measure_steps(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be started"):
        measure_steps(artifact, python=str(tmp_path / "no-python"))
    (artifact / "train.onnx").write_bytes(b"other")
    with pytest.raises(ArtifactCorrupt, match=r"train\.onnx has digest"):
        measure_steps(artifact)


def test_what_a_runtime_is_here_is_asked_in_a_child(tmp_path: Path) -> None:
    told = runtime_about("onnxruntime")
    assert told is not None
    assert told[0][0].isdigit()
    assert told[1] == 0
    assert runtime_about("onnxruntime", interpreter(tmp_path, "exit 1")) is None


@pytest.mark.parametrize(("number", "name"), [(9, r"SIGKILL \(killed, perhaps out of memory\)"), (11, "SIGSEGV")])
def test_what_a_runtime_is_here_is_not_known_when_what_looks_for_it_was_killed(
    tmp_path: Path, number: int, name: str
) -> None:
    script = interpreter(tmp_path, f"kill -{number} $$")
    with pytest.raises(DeviceRefused, match=f"looks for onnxruntime was ended, {name}, before.* measure again"):
        runtime_about("onnxruntime", script)


@pytest.mark.slow
def test_the_child_has_no_torch(artifact: Path, tmp_path: Path) -> None:
    script = (
        "import sys, os; from edge.measuring.child import main;"
        "status = main([*sys.argv[1:], '0', str(os.getppid())]);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    for words in (["inputs", artifact, tmp_path, BATCH, "{}"], ["steps", artifact, tmp_path, BATCH, 1, 3, 0]):
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, words)],
            capture_output=True,
            text=True,
            env=dict(os.environ),
            check=False,
        )
        assert done.returncode == 0, done.stderr
