"""Fits of a climbed ladder against truths that are known."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.device import PARAMETER_LIVE_BYTES, StepLine
from profiles.ladder_fit import LadderPoint, fit_ladder
from profiles.latency import WorkSample, fit_work_time

MB = 2**20
SHAPES = 7
TRUE_STEP = StepLine(
    threads=1, constant_ms=0.0, gigamac_ms=40.0, megabyte_ms=0.7, graph_kilobyte_ms=0.02, megaparameter_ms=0.5
)


def points(*, threads: int = 1, slower: float = 1.0, runtime: str = "onnxruntime") -> list[LadderPoint]:
    """Seven shapes at two batches, of a device whose growth is max(15 MB, 1.1 x predicted - 3 MB)."""
    draw = np.random.default_rng(3)
    found = []
    for shape in range(SHAPES):
        parameters, macs = int(draw.integers(10**4, 2 * 10**6)), int(draw.integers(10**5, 5 * 10**7))
        activations, graph = int(draw.integers(10**5, 10**6)), int(draw.integers(10**4, 2 * 10**5))
        for batch in (8, 32):
            live = PARAMETER_LIVE_BYTES * parameters + batch * activations
            predicted = live + 2 * MB
            step = TRUE_STEP.step_ms(macs=macs, batch=batch, live_bytes=live, parameters=parameters, graph_bytes=graph)
            found.append(
                LadderPoint(
                    shape=f"shape-{shape}",
                    runtime=runtime,
                    batch=batch,
                    threads=threads,
                    macs=macs,
                    live_bytes=live,
                    predicted_bytes=predicted,
                    idle_bytes=50 * MB,
                    grown_bytes=max(15 * MB, round(1.1 * predicted) - 3 * MB),
                    step_ms=slower * step,
                    parameters=parameters,
                    graph_bytes=graph,
                )
            )
    return found


@pytest.mark.slow
def test_a_ladder_gives_the_lines_back() -> None:
    fits = fit_ladder(points(), now=7.0)
    assert fits.problems == ()
    line = fits.lines.memory_lines["onnxruntime"]
    assert (line.scale, line.offset_bytes) == (pytest.approx(1.1, rel=1e-3), pytest.approx(-3 * MB, rel=0.02))
    assert (line.points, line.measured_at) == (14, 7.0)
    assert line.growth_bytes(10**6) == pytest.approx(15 * MB, rel=0.05)
    (step,) = fits.lines.step_lines["onnxruntime"]
    assert (step.threads, step.points, step.measured_at) == (1, 14, 7.0)
    assert step.gigamac_ms == pytest.approx(40.0, rel=1e-3)
    assert step.megabyte_ms == pytest.approx(0.7, rel=1e-3)
    assert step.graph_kilobyte_ms == pytest.approx(0.02, rel=1e-3)
    assert step.megaparameter_ms == pytest.approx(0.5, rel=1e-2)


@pytest.mark.slow
def test_numbers_of_threads_and_runtimes_have_lines_of_their_own() -> None:
    both = points() + points(threads=2, slower=0.6) + points(runtime="executorch")
    fits = fit_ladder(both)
    assert set(fits.lines.memory_lines) == {"onnxruntime", "executorch"}
    one, two = fits.lines.step_lines["onnxruntime"]
    assert (one.threads, two.threads) == (1, 2)
    assert two.gigamac_ms == pytest.approx(0.6 * one.gigamac_ms, rel=1e-3)


def test_a_ladder_with_too_little_says_what_is_missing() -> None:
    few = points()[:2]
    fits = fit_ladder(few)
    assert fits.steps == {}
    assert len(fits.problems) == 1
    assert fits.problems[0].startswith("step times on onnxruntime, 1 threads: 2 different measurements")
    assert fit_ladder([]).lines.memory_lines == {}


def test_a_line_answers_without_graph_and_parameters_too() -> None:
    samples = [WorkSample(p.macs, p.batch, p.live_bytes, p.step_ms, p.parameters, p.graph_bytes) for p in points()]
    model = fit_work_time(samples)
    graphs = sorted({sample.graph_bytes for sample in samples})
    median = graphs[3]
    assert model.constant_ms == pytest.approx(0.02 * median / 1e3, rel=1e-3)
    line = model.line(1)
    assert line.start_ms() == line.constant_ms
    assert line.start_ms(50_000) == pytest.approx(1.0, rel=1e-3)
    assert line.step_ms(macs=10**7, batch=10, live_bytes=0) == pytest.approx(line.constant_ms + 4.0, rel=1e-3)
    # Live bytes that the parameters account for are no activations.
    assert line.step_ms(macs=0, batch=1, live_bytes=30 * 10**6, parameters=10**6, graph_bytes=50_000) == pytest.approx(
        1.0 + 0.5, rel=1e-2
    )
