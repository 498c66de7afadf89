"""``plan`` with several runtimes: each group on its own, and one that is not here does not hide the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.federation.small_run import config_text

pytestmark = pytest.mark.runtime


def test_plan_names_the_runtime_of_every_group_and_why_one_cannot_be_placed(command: Command, tmp_path: Path) -> None:
    config, nowhere = tmp_path / "run.toml", tmp_path / "nowhere"
    text = config_text(local=2, runtimes=("onnxruntime", "executorch"))
    config.write_text(text.replace("[runtime]\n", f'[runtime]\nenvironments = {{ executorch = "{nowhere}" }}\n'))
    outcome = command("plan", config, "--json")
    assert outcome.status == 1
    here, missing = outcome.line["groups"]
    assert (here["runtime"], here["level"]) == ("onnxruntime", "rank 1/4")
    assert (missing["runtime"], missing["level"]) == ("executorch", None)
    assert missing["error"].startswith("cohort.local[1]: cannot train on its runtime 'executorch': ")
    assert f"{nowhere} has no bin/python" in missing["error"]


def test_plan_explains_with_the_runtime(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(config_text(local=1))
    outcome = command("plan", config, "--explain")
    assert outcome.status == 0
    assert outcome.out.splitlines()[0].endswith("+ headroom, on onnxruntime")
