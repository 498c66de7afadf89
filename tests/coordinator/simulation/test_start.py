"""What a simulation does not import before its first round: each of these takes a second or more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch._dynamo", "sympy", "sklearn")
PROGRAM = """
import sys
from pathlib import Path
from coordinator.run_file.loading import load_config
from coordinator.simulation.assembly import SimulationOptions, open_simulation
from coordinator.simulation.record import Record

config, folder = load_config(Path(sys.argv[1])), Path(sys.argv[2])
with open_simulation(config, folder, Record(), SimulationOptions(quiet=True)):
    print([name for name in sys.argv[3:] if name in sys.modules])
"""


@pytest.mark.slow
def test_opening_a_simulation_imports_no_compiler(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", PROGRAM, str(root / "examples" / "digits.toml"), str(tmp_path), *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
