"""A runtime leaves nothing in its owner's home folder, and tells nobody that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SWITCH = "ORT_DISABLE_TELEMETRY"


def python(line: str, home: Path, **variables: str) -> str:
    """What ``line`` prints in a process whose home folder is ``home``."""
    environment = {name: value for name, value in os.environ.items() if name not in (SWITCH, "XDG_CACHE_HOME")}
    environment |= {"HOME": str(home), **variables}
    done = subprocess.run([sys.executable, "-c", line], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.runtime
def test_onnxruntime_keeps_no_id_of_the_device(tmp_path: Path) -> None:
    python("from edge.runtimes import runtime; runtime('onnxruntime')", tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_owner_may_have_it_otherwise(tmp_path: Path) -> None:
    assert python(f"import edge, os; print(os.environ['{SWITCH}'])", tmp_path, **{SWITCH: "0"}) == "0"
