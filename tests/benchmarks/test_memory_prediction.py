"""Lines of ``bench step --json`` become a table of prediction errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory_prediction import main, read_points


def line(model: str, growth_mb: float, *, predicted_mb: float, **other: Any) -> str:
    values = {"idle_rss_mb": 50.0, "trainer_peak_mb": 50.0 + growth_mb, "process_peak_mb": 70.0 + growth_mb}
    named = {"schema": "apportion.bench/1", "ok": True, "model": model, "runtime": "onnxruntime"}
    return json.dumps({**named, **values, "predicted_peak_mb": 50.0 + predicted_mb, **other})


def test_points_are_the_finished_lines(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    lines = [line("a", 30.0, predicted_mb=20.0), "", "Traceback", line("b", 1.0, predicted_mb=1.0, ok=False), "[]"]
    file.write_text("\n".join(lines))
    (point,) = read_points([file])
    assert (point.shape, point.idle_bytes, point.predicted_bytes, point.grown_bytes) == (
        "a",
        70 * 2**20,
        20 * 2**20,
        30 * 2**20,
    )


def test_table_and_line_say_both_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(
        "\n".join(
            line(name, 1.5 * size, predicted_mb=size) for name, size in zip("abcd", (10, 20, 40, 60), strict=True)
        )
    )
    assert main([str(file)]) == 0
    shown = capsys.readouterr().out.splitlines()
    told = json.loads(shown[-1])
    assert told["manifest"]["growth_median"] == pytest.approx(1 / 3)
    assert told["fit on other models"]["total_worst"] == pytest.approx(0.0, abs=1e-6)
    assert "onnxruntime: 1.500 x predicted +0.0 MB" in "\n".join(shown)


def test_too_little_is_exit_1_with_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "steps.jsonl").write_text(line("a", 5.0, predicted_mb=5.0))
    assert main([str(tmp_path / "steps.jsonl")]) == 1
    assert "a on onnxruntime, from the other shapes" in capsys.readouterr().err
