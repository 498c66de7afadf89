"""The notebook in examples/ does what its cells say: they are executed, one after the other, as a kernel would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.apportion.test_documented_python import first_example

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples" / "first_federation.ipynb").read_text(encoding="utf-8"))


def code_cells() -> list[str]:
    return ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_first_cell_is_the_example_of_the_readme_and_no_output_is_kept() -> None:
    assert code_cells()[0].rstrip() == first_example("README.md").rstrip()
    assert [cell for cell in NOTEBOOK["cells"] if cell.get("outputs")] == []


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells()):
        exec(compile(cell, f"cell {number}", "exec"), names)
    simulated, history = names["simulated"], names["history"]
    assert history.accuracy > 0.8  # 0.33 is guessing
    assert history.accuracy == pytest.approx(simulated.accuracy, abs=0.05)
    assert history.summary["torch_loaded_on_devices"] is False
    assert len(history.devices) == 4
    assert names["deployed"].torch_accuracy - names["deployed"].accuracy <= 0.02
    assert (tmp_path / "model" / "inference.json").is_file()
    assert names["unusual"].summary["metric"] == "off"
    assert min(names["distances"]["knock"], names["distances"]["rub"]) > 1.5 * names["distances"]["hum"]
