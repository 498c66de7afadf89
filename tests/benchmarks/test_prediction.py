"""Errors of predictions, on measurements that obey the models and one that does not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prediction_page import page, predictions, read_lines, shape_of, step_ms, summary
from benchmarks.prediction_points import POINT_FILE, all_points, read_points

MB = 2**20

# (model, cut, batch, megabytes predicted, 10^6 multiply-accumulates, 10^6 parameters, kilobytes of graph)
SHAPES = (
    ("a", "", 8, 40, 5, 2.0, 30),
    ("a", "", 32, 70, 5, 2.0, 30),
    ("a", "x:2", 8, 20, 2, 0.5, 50),
    ("b", "", 16, 90, 20, 0.2, 90),
    ("b", "", 32, 150, 20, 0.2, 90),
    ("c", "", 8, 30, 1, 1.0, 20),
    ("c", "x:2", 32, 50, 8, 3.0, 60),
    ("d", "", 16, 60, 12, 0.1, 10),
)


def line(
    model: str, cut: str, batch: int, predicted: float, macs: float, parameters: float, graph: float
) -> dict[str, Any]:
    """A line whose growth is 1.1 x predicted - 2 MB and whose time is that of its work."""
    live = predicted * MB * 0.9
    activations = max(0.0, live - 36e6 * parameters)
    time = 0.2 * graph + 30 * batch * macs / 1e3 + 0.1 * activations / 1e6 + 4 * parameters
    return {
        "model": model, "cut": cut, "freeze": 0, "runtime": "onnxruntime", "batch": batch,
        "predicted_bytes": round(predicted * MB), "idle_bytes": 50 * MB,
        "peak_bytes": round((48 + 1.1 * predicted) * MB),
        "step_ms_p50": time, "step_ms_p95": time, "steps": 20, "ended": "", "cpu_share": 1.0, "load": 0.1,
        "cost": {"parameters": round(1e6 * parameters), "trained_parameters": round(1e6 * parameters),
                 "macs": round(1e6 * macs), "live_bytes": round(live), "state_bytes": 0,
                 "graph_bytes": round(1e3 * graph)},
    }  # fmt: skip


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    return [line(*shape) for shape in SHAPES]


def test_predictions_of_what_obeys_the_models_are_right(lines: list[dict[str, Any]]) -> None:
    for measured, predicted in zip(lines, predictions(lines, shape_of), strict=True):
        assert predicted["grown_bytes"] == pytest.approx(measured["peak_bytes"] - measured["idle_bytes"], rel=1e-4)
        assert predicted["step_ms"] == pytest.approx(measured["step_ms_p50"], rel=0.01)


def test_summary_tells_the_worst_and_not_what_a_point_says_of_itself(lines: list[dict[str, Any]]) -> None:
    odd = lines[3]
    odd["peak_bytes"] += 30 * MB
    worst = summary(lines)["other shapes"]["all"]["worst total"]
    assert worst == pytest.approx(30 * MB / odd["peak_bytes"], rel=0.1)


def test_step_time_of_a_busy_processor_is_its_share(lines: list[dict[str, Any]]) -> None:
    assert step_ms({**lines[0], "step_ms_p50": 100.0, "cpu_share": 0.4}) == pytest.approx(40.0)
    assert step_ms({**lines[0], "step_ms_p50": 100.0, "cpu_share": 0.97}) == 100.0


def test_page_has_every_point_and_leaves_out_what_was_killed(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    killed = {**lines[0], "ended": "SIGKILL", "peak_bytes": 0}
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in (*lines, killed)))
    read = read_lines(tmp_path / "points.jsonl")
    assert len(read) == len(lines)
    text = page(read, summary(read))
    assert f"{len(lines)} points (cut, runtime, batch) of 4 models" in text
    assert "worst total holds" in text
    assert text.count("| onnxruntime | 8 |") == sum(shape[2] == 8 for shape in SHAPES) + 2  # and of all points, twice


def test_points_are_enough_and_each_has_a_folder_of_its_own(tmp_path: Path) -> None:
    points = list(all_points())
    assert len(points) >= 60
    assert len({point.folder for point in points}) == len(points)
    for runtime in ("onnxruntime", "executorch", "onnxruntime_training"):
        assert len({point.model for point in points if point.runtime == runtime}) >= 5
    place = tmp_path / points[0].folder
    place.mkdir()
    (place / POINT_FILE).write_text(json.dumps(dataclasses.asdict(points[0])))
    assert read_points(tmp_path) == [(points[0], place / "artifact")]
