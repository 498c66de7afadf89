"""``apportion init``: what it writes, that it writes over nothing, and that the project runs as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.project.writing import federation_name, write_project
from coordinator.run_file.loading import load_config
from edge.contracts.errors import ConfigError

ROOT = Path(__file__).parents[2]
FILES = ["README.md", "data.py", "model.py", "run.toml", "test_project.py"]


def test_project_is_written_with_the_folder_s_name(tmp_path: Path) -> None:
    written = write_project(tmp_path / "my sensors")
    assert [path.name for path in written] == FILES
    config = load_config(tmp_path / "my sensors" / "run.toml")
    assert config.federation.name == "my-sensors"
    assert (config.model.build, config.data.source) == ("model:build", "data:recordings")
    assert [path.name for path in written if "@" in path.read_text()] == []


def test_files_that_are_there_are_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"has model.py already"):
        write_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
    with pytest.raises(ConfigError, match="is not a folder"):
        write_project(tmp_path / "model.py")


@pytest.mark.parametrize(("folder", "name"), [("a/b c", "b-c"), ("ümlaut.", "mlaut"), ("...x", "x"), ("__", "project")])
def test_name_is_one_that_a_topic_takes(tmp_path: Path, folder: str, name: str) -> None:
    assert federation_name(tmp_path / folder) == name


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.runtime
def test_project_simulates_runs_and_passes_its_own_test(tmp_path: Path) -> None:
    """Guessing among three classes gives 0.33; 0.99 was measured for both."""
    write_project(tmp_path / "sensors")
    environment = os.environ | {"PYTHONPATH": f".{os.pathsep}{ROOT}"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path / "sensors", env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    for verb in ("simulate", "run"):
        summary = json.loads(run("edge", verb, "run.toml", "--quiet", "--run-dir", verb, "--json"))
        assert summary["rounds"] == 5
        assert summary["accuracy"] > 0.9
    assert "3 passed" in run("pytest", "-q", "-p", "no:cacheprovider")
