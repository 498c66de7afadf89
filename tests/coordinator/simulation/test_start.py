"""What a simulation does not import before its first round: each of these takes a second or more.

Where groups have a budget, the memory of a level is told with its format's own formula, which needs two of them.
"""

from __future__ import annotations

import re
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
    text = (root / "examples" / "digits.toml").read_text(encoding="utf-8")
    without_budgets = re.sub(r"^budget-mb = .*$", "", text, flags=re.MULTILINE)
    assert without_budgets != text
    (tmp_path / "run.toml").write_text(without_budgets, encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run.toml"), str(tmp_path / "run"), *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
