"""The planner: the largest level that fits, the reason for it, and a clear error when none does."""

from __future__ import annotations

import msgspec
import pytest
from torch import nn

from coordinator.methods.fjord import FjORD
from coordinator.methods.method import DeviceProgram, Level
from coordinator.planner import MB, choose_runtime, correction_from, place, predict, require_able
from edge.contracts.errors import PlanError
from edge.contracts.manifest import Cost, InputSpec
from profiles.device import DeviceProfile

FULL, HALF, QUARTER = Level("full", 1, 1.0), Level("rank 1/2", 2, 0.5), Level("rank 1/4", 4, 0.25)
LADDER = (FULL, HALF, QUARTER)
STEP_MB = {FULL: 100, HALF: 50, QUARTER: 20}


def profile(budget_mb: float, **idle: int) -> DeviceProfile:
    return DeviceProfile(
        device="pi-07",
        budget_bytes=round(budget_mb * MB),
        supervisor_idle_bytes=30 * MB,
        trainer_idle_bytes=idle or {"onnxruntime": 50 * MB},
    )


def cost_of(level: Level) -> Cost:
    return Cost(
        parameters=1,
        trained_parameters=1,
        macs=1,
        state_bytes=1,
        live_bytes=1,
        predicted_peak_bytes=STEP_MB[level] * MB,
        batch=32,
    )


@pytest.mark.parametrize(
    ("budget_mb", "expected"),
    [(190.0, FULL), (189.9, HALF), (135.0, HALF), (134.9, QUARTER), (102.0, QUARTER), (0, FULL)],
)
def test_place_takes_the_largest_level_that_fits(budget_mb: float, expected: Level) -> None:
    # 80 MB idle plus the step with 10 % headroom: 190, 135 and 102 MB.
    placement = place(profile(budget_mb), "onnxruntime", LADDER, cost_of, headroom=0.1)
    assert placement.level is expected


def test_place_names_every_larger_level_that_was_tried() -> None:
    placement = place(profile(102), "onnxruntime", LADDER, cost_of, headroom=0.1)
    assert [p.level.name for p in placement.tried] == ["full", "rank 1/2"]
    assert "full: 190.0 MB = idle 80.0 + step 100.0" in placement.tried[0].describe()


def test_place_costs_no_level_below_the_one_that_fits() -> None:
    asked: list[Level] = []

    def recording(level: Level) -> Cost:
        asked.append(level)
        return cost_of(level)

    place(profile(135), "onnxruntime", LADDER, recording, headroom=0.1)
    assert asked == [FULL, HALF]


def test_place_refuses_a_budget_below_the_smallest_level() -> None:
    with pytest.raises(
        PlanError, match=r"device pi-07: budget 101\.0 MB fits no cut; the smallest is rank 1/4: 102\.0 MB"
    ):
        place(profile(101), "onnxruntime", LADDER, cost_of, headroom=0.1)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"memory_limit_bytes": 150 * MB}, HALF),
        ({"ram_bytes": 150 * MB}, HALF),
        ({"ram_bytes": 8000 * MB, "memory_limit_bytes": 120 * MB, "budget_bytes": 140 * MB}, QUARTER),
        ({"ram_bytes": 8000 * MB, "memory_limit_bytes": 1000 * MB}, FULL),
    ],
)
def test_place_stays_below_a_control_groups_limit_and_the_memory_itself(
    limits: dict[str, int], expected: Level
) -> None:
    limited = msgspec.structs.replace(profile(0), **limits)
    assert place(limited, "onnxruntime", LADDER, cost_of, headroom=0.1).level is expected


def test_place_names_the_limit_that_fits_no_cut() -> None:
    limited = msgspec.structs.replace(profile(500), memory_limit_bytes=90 * MB)
    with pytest.raises(PlanError, match=r"memory limit 90\.0 MB fits no cut;.*raise the device's memory limit"):
        place(limited, "onnxruntime", LADDER, cost_of, headroom=0.1)


def test_place_downshifts_when_the_device_measured_more() -> None:
    placement = place(profile(190), "onnxruntime", LADDER, cost_of, headroom=0.1, correction_of=lambda level: 1.3)
    assert placement.level is HALF
    assert placement.chosen.peak_bytes == 80 * MB + round(50 * MB * 1.3 * 1.1)


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        ({"onnxruntime": 1}, "onnxruntime"),
        ({"onnxruntime": 1, "executorch": 1}, "executorch"),
        ({"onnxruntime": 1, "executorch": 0}, "onnxruntime"),
    ],
)
def test_device_trains_with_the_runs_first_runtime_that_it_has(has: dict[str, int], expected: str) -> None:
    assert choose_runtime(profile(0, **has), ("executorch", "onnxruntime")) == expected


def test_device_without_a_runtime_of_the_run_is_told_what_it_has_and_what_the_run_allows() -> None:
    with pytest.raises(PlanError, match=r"device pi-07: has executorch, the run allows onnxruntime, other; install"):
        choose_runtime(profile(0, executorch=1), ("onnxruntime", "other"))


def test_place_counts_the_idle_size_of_the_runtime_and_names_it() -> None:
    both = profile(190, onnxruntime=50 * MB, executorch=100 * MB)
    assert place(both, "onnxruntime", LADDER, cost_of, headroom=0.1).level is FULL
    placement = place(both, "executorch", LADDER, cost_of, headroom=0.1)
    assert (placement.level, placement.runtime) == (HALF, "executorch")
    assert placement.chosen.describe().endswith("+ headroom, on executorch")


def test_predict_refuses_a_runtime_the_device_does_not_have() -> None:
    with pytest.raises(PlanError, match="no idle size for runtime 'executorch' in its profile \\(has onnxruntime\\)"):
        predict(profile(100), "executorch", FULL, cost_of(FULL), headroom=0.1)


@pytest.mark.parametrize(
    ("measured", "expected"), [(180, 1.0), (230, 1.5), (80, 1.0), (70, 1.0), (90, 0.5), (1000, 3.0)]
)
def test_correction_is_measured_over_predicted_within_bounds(measured: int, expected: float) -> None:
    assert correction_from(measured * MB, 80 * MB, 100 * MB) == pytest.approx(expected)


def test_method_is_refused_for_a_runtime_that_lacks_what_one_of_its_levels_needs() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    module.input_spec = InputSpec(layout="features", shape=(4,))
    method = FjORD(module, {"levels": [1, 0.5]})

    def unable(program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        return ("several programs",) if program.variants and runtime == "small" else ()

    require_able(method, "large", unable, seed=0)
    with pytest.raises(PlanError, match="method fjord, level full, needs several programs, which runtime small cannot"):
        require_able(method, "small", unable, seed=0)
