"""The planner: the largest level that fits, the reason for it, and a clear error when none does."""

from __future__ import annotations

import random

import msgspec
import pytest
from torch import nn

from coordinator.methods.fjord import FjORD
from coordinator.planning.estimate import Estimate
from coordinator.planning.history import DeviceHistory
from coordinator.planning.planner import MB, choose_runtimes, place, require_able
from coordinator.planning.prediction import form_margin, forms_of, predict
from coordinator.planning.requests import Requests
from coordinator.submodels.values import DeviceProgram, Level
from edge.contracts.errors import PlanError
from edge.contracts.manifest import Cost, InputSpec
from export.forms.step_form import PLAIN, StepForm
from profiles.device import DeviceProfile, MemoryLine, StepLine

FULL, HALF, QUARTER = Level("full", 1, 1.0), Level("rank 1/2", 2, 0.5), Level("rank 1/4", 4, 0.25)
LADDER = (FULL, HALF, QUARTER)
MICRO_2, MICRO_4, RECOMPUTE = StepForm(2), StepForm(4), StepForm(1, True)
ALL_FORMS = Requests(headroom=0.1, forms=(PLAIN, MICRO_2, MICRO_4, RECOMPUTE))
STEP_MB = {FULL: 100, HALF: 50, QUARTER: 20}


def profile(budget_mb: float, **idle: int) -> DeviceProfile:
    return DeviceProfile(
        device="pi-07",
        budget_bytes=round(budget_mb * MB),
        supervisor_idle_bytes=30 * MB,
        trainer_idle_bytes=idle or {"onnxruntime": 50 * MB},
    )


class Steps:
    """Steps of by-hand sizes, plain ones unless ``sizes`` says more; remembers what was exported."""

    def __init__(self, sizes: dict[tuple[Level, StepForm], float] | None = None, *, error: float = 1.0) -> None:
        self.sizes = sizes or {(level, PLAIN): STEP_MB[level] for level in LADDER}
        self.asked: list[tuple[str, str]] = []
        self._error = error

    def cost(self, level: Level, runtime: str, form: StepForm) -> Cost:
        if (level.name, form.name) not in self.asked:
            self.asked.append((level.name, form.name))
        return cost_of(self.sizes[level, form])

    def key(self, level: Level, runtime: str, form: StepForm) -> str:
        return f"{level.name}/{runtime}/{form.name}"

    def refused(self, level: Level, runtime: str, form: StepForm) -> str:
        return "" if (level, form) in self.sizes else "no such step"

    def is_known(self, level: Level, runtime: str, form: StepForm) -> bool:
        return (level.name, form.name) in self.asked

    def estimate(self, level: Level, runtime: str, form: StepForm) -> Estimate | None:
        size = self.sizes[level, form] * self._error * MB
        return Estimate(round(size), round(size * 0.7))

    def plain_cost(self, level: Level, runtime: str, form: StepForm) -> Cost | None:
        return cost_of(self.sizes[level, form.of_model])


def cost_of(step_mb: float) -> Cost:
    return Cost(
        parameters=1,
        trained_parameters=1,
        macs=10**7,
        state_bytes=1,
        live_bytes=round(step_mb * 1e6),
        predicted_peak_bytes=round(step_mb * MB),
        batch=32,
    )


PLAIN_ONLY = Requests(headroom=0.1)
ONE = ("onnxruntime",)


@pytest.mark.parametrize(
    ("budget_mb", "expected"),
    [(194.0, FULL), (193.9, HALF), (139.0, HALF), (138.9, QUARTER), (106.0, QUARTER), (0, FULL)],
)
def test_place_takes_the_largest_level_that_fits(budget_mb: float, expected: Level) -> None:
    # 80 MB idle, 4 MB for the supervisor's transfers and the step with 10 % headroom: 194, 139 and 106 MB.
    assert place(profile(budget_mb), ONE, LADDER, Steps(), PLAIN_ONLY).level is expected


def test_place_names_every_larger_level_that_was_tried() -> None:
    placement = place(profile(125), ONE, LADDER, Steps(), PLAIN_ONLY)
    assert [(t.level.name, t.outcome) for t in placement.tried] == [
        ("full", "estimated-too-large"),
        ("rank 1/2", "too-large"),
        ("rank 1/4", "fits"),
    ]
    assert "rank 1/2: 139.0 MB = idle 84.0 + step 50.0 + headroom 5.0" in placement.tried[1].describe()


def test_place_exports_no_level_below_the_one_that_fits_and_none_that_is_far_too_large() -> None:
    steps = Steps()
    place(profile(170), ONE, LADDER, steps, PLAIN_ONLY)
    assert steps.asked == [("full", "plain"), ("rank 1/2", "plain")]
    steps = Steps()
    place(profile(106), ONE, LADDER, steps, PLAIN_ONLY)
    assert steps.asked == [("rank 1/4", "plain")]


def test_place_refuses_a_budget_below_the_smallest_level() -> None:
    with pytest.raises(
        PlanError, match=r"device pi-07: budget 105\.0 MB fits no cut; the smallest is rank 1/4: 106\.0 MB"
    ):
        place(profile(105), ONE, LADDER, Steps(), PLAIN_ONLY)


def test_place_turns_nobody_away_by_an_estimate() -> None:
    """Estimates four times too high: the smallest level is exported all the same, and fits."""
    placement = place(profile(106), ONE, LADDER, Steps(error=4.0), PLAIN_ONLY)
    assert placement.level is QUARTER


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
    assert place(limited, ONE, LADDER, Steps(), PLAIN_ONLY).level is expected


def test_place_names_the_limit_that_fits_no_cut() -> None:
    limited = msgspec.structs.replace(profile(500), memory_limit_bytes=90 * MB)
    with pytest.raises(PlanError, match=r"memory limit 90\.0 MB fits no cut;.*raise the device's memory limit"):
        place(limited, ONE, LADDER, Steps(), PLAIN_ONLY)


def test_place_downshifts_when_the_device_measured_more() -> None:
    placement = place(profile(194), ONE, LADDER, Steps(), PLAIN_ONLY, DeviceHistory(usual={"onnxruntime": 1.3}))
    assert placement.level is HALF
    assert placement.chosen.peak_bytes == 84 * MB + round(50 * MB * 1.3) + round(round(50 * MB * 1.3) * 0.1)


def test_larger_level_in_a_slower_form_comes_before_a_smaller_level() -> None:
    """Steps by micro-batches are given 15 % beyond their predictions: 153 and 130 MB."""
    sizes = {(FULL, PLAIN): 100, (FULL, MICRO_2): 60, (FULL, MICRO_4): 40, (HALF, PLAIN): 50, (QUARTER, PLAIN): 20}
    placement = place(profile(131), ONE, LADDER, Steps(sizes), ALL_FORMS)
    assert (placement.level, placement.form) == (FULL, MICRO_4)
    assert place(profile(154), ONE, LADDER, Steps(sizes), ALL_FORMS).form == MICRO_2
    assert place(profile(194), ONE, LADDER, Steps(sizes), ALL_FORMS).form == PLAIN
    assert place(profile(131), ONE, LADDER, Steps(sizes), PLAIN_ONLY).level is QUARTER


def test_forms_are_tried_by_the_devices_own_step_times() -> None:
    """A step of 32 x 10^7 macs at 100 ms per 10^9: 32 ms of work; 40 ms at every micro-batch make two cost more than a
    recomputation does, 1 ms does not."""
    sizes = {(FULL, PLAIN): 100, (FULL, MICRO_2): 60, (FULL, RECOMPUTE): 60}
    for constant_ms, expected in ((40.0, RECOMPUTE), (1.0, MICRO_2)):
        lines = {"onnxruntime": (StepLine(1, constant_ms, 100.0, 0.0),)}
        device = msgspec.structs.replace(profile(160), step_lines=lines)
        requests = Requests(headroom=0.1, forms=(PLAIN, MICRO_2, RECOMPUTE))
        assert place(device, ONE, (FULL,), Steps(sizes), requests).form == expected


def test_threads_are_the_fastest_that_were_measured_unless_the_run_names_a_number() -> None:
    lines = {"onnxruntime": (StepLine(1, 1.0, 100.0, 0.0), StepLine(2, 1.0, 60.0, 0.0), StepLine(4, 1.0, 80.0, 0.0))}
    device = msgspec.structs.replace(profile(0), step_lines=lines, cpu_count=4)
    chosen = place(device, ONE, LADDER, Steps(), Requests(headroom=0.1, threads=0)).chosen
    assert (chosen.threads, chosen.step_ms) == (2, pytest.approx(1 + 0.32 * 60))
    fixed = place(device, ONE, LADDER, Steps(), Requests(headroom=0.1, threads=4)).chosen
    assert (fixed.threads, fixed.step_ms) == (4, pytest.approx(1 + 0.32 * 80))
    two = msgspec.structs.replace(device, max_threads={"onnxruntime": 1})
    assert place(two, ONE, LADDER, Steps(), Requests(headroom=0.1, threads=0)).chosen.threads == 1
    unmeasured = place(profile(0), ONE, LADDER, Steps(), Requests(headroom=0.1, threads=0)).chosen
    assert (unmeasured.threads, unmeasured.step_ms) == (1, None)


def test_a_browser_without_step_times_takes_two_threads_where_it_has_them() -> None:
    idle = msgspec.structs.replace(profile(0), trainer_idle_bytes={"onnxruntime_web": 16 * MB}, cpu_count=8)
    for most, expected in ((8, 2), (2, 2), (1, 1)):
        browser = msgspec.structs.replace(idle, max_threads={"onnxruntime_web": most})
        chosen = place(browser, ("onnxruntime_web",), LADDER, Steps(), Requests(headroom=0.1, threads=0)).chosen
        assert (chosen.threads, chosen.step_ms) == (expected, None)
        named = place(browser, ("onnxruntime_web",), LADDER, Steps(), Requests(headroom=0.1, threads=1)).chosen
        assert named.threads == 1


def test_cuts_whose_step_takes_too_long_are_passed_over() -> None:
    """1 ms per MB of live bytes: 100, 50 and 20 ms."""
    device = msgspec.structs.replace(profile(0), step_lines={"onnxruntime": (StepLine(1, 0.0, 0.0, 1.0),)})
    slow = place(device, ONE, LADDER, Steps(), Requests(headroom=0.1, max_step_s=0.06))
    assert slow.level is HALF
    assert slow.tried[0].outcome == "estimated-too-slow"
    with pytest.raises(PlanError, match=r"no cut takes at most 0\.01 s a step.*raise planner\.max-step-s"):
        place(device, ONE, LADDER, Steps(), Requests(headroom=0.1, max_step_s=0.01))


def test_growth_goes_through_the_line_that_was_measured_on_the_device() -> None:
    """0.8 x 100 MB - 5 MB = 75; the worst point was 9 MB above, more than 10 % headroom."""
    line = MemoryLine(0.8, -5 * MB, missing_bytes=9 * MB, points=6)
    device = msgspec.structs.replace(profile(0), memory_lines={"onnxruntime": line})
    chosen = place(device, ONE, LADDER, Steps(), PLAIN_ONLY).chosen
    assert (chosen.expected_bytes, chosen.peak_bytes) == (159 * MB, 168 * MB)
    assert "6 points measured on the device" in chosen.growth_source


def test_runtime_with_which_a_larger_level_fits_wins_and_the_first_of_equals() -> None:
    both = profile(139, onnxruntime=50 * MB, executorch=10 * MB)  # 194 and 154 MB for the whole model
    assert place(both, ("onnxruntime", "executorch"), LADDER, Steps(), PLAIN_ONLY).runtime == "onnxruntime"
    roomier = msgspec.structs.replace(both, budget_bytes=154 * MB)
    placement = place(roomier, ("onnxruntime", "executorch"), LADDER, Steps(), PLAIN_ONLY)
    assert (placement.runtime, placement.level) == ("executorch", FULL)


def test_step_that_failed_before_is_never_given_again() -> None:
    """The plain whole model ran out of memory although it was predicted to fit: its form by micro-batches is next."""
    sizes = {(FULL, PLAIN): 100, (FULL, MICRO_2): 60, (HALF, PLAIN): 50, (QUARTER, PLAIN): 20}
    history = DeviceHistory(setbacks={"full/onnxruntime/plain": "ran out of memory"}, forced={"onnxruntime": 1.2})
    placement = place(profile(194), ONE, LADDER, Steps(sizes), ALL_FORMS, history)
    assert (placement.form, placement.chosen.correction) == (MICRO_2, 1.2)
    assert placement.tried[0].outcome == "failed-before"


@pytest.mark.parametrize("seed", range(40))
def test_search_finds_what_trying_every_step_finds(seed: int) -> None:
    """Ladders of up to ten levels in four forms, sizes by chance, estimates up to 25 % off either way."""
    draw = random.Random(seed)
    levels = [Level(f"l{i}", i, 1.0) for i in range(draw.randint(1, 10))]
    sizes, size = {}, draw.uniform(50, 300)
    for level in levels:
        size *= draw.uniform(0.6, 0.95)
        sizes |= {(level, form): size * share for form, share in ((PLAIN, 1), (MICRO_2, 0.7), (MICRO_4, 0.5))}
        sizes[level, RECOMPUTE] = size * draw.uniform(0.4, 0.9)
    budget = draw.uniform(100, 400)
    steps = Steps(sizes, error=draw.uniform(0.75, 1.25))
    requests = Requests(headroom=0.1, forms=(PLAIN, MICRO_2, MICRO_4, RECOMPUTE))
    fitting = [
        (level, form)
        for level in levels
        for form in requests.forms
        if 84 + (1 + max(0.1, form_margin(form))) * sizes[level, form] <= budget - 1e-4
    ]
    if not fitting:
        with pytest.raises(PlanError):
            place(profile(budget), ONE, levels, steps, requests)
        return
    placement = place(profile(budget), ONE, levels, steps, requests)
    assert (placement.level, placement.form) == fitting[0]
    assert len(steps.asked) <= 4 + sum(1 for level, form in steps.sizes if level == placement.level)


def test_device_trains_with_the_runs_runtimes_that_it_has_in_their_order() -> None:
    allowed = ("executorch", "onnxruntime")
    assert choose_runtimes(profile(0, onnxruntime=1), allowed) == ("onnxruntime",)
    assert choose_runtimes(profile(0, onnxruntime=1, executorch=1), allowed) == ("executorch", "onnxruntime")
    assert choose_runtimes(profile(0, onnxruntime=1, executorch=0), allowed) == ("onnxruntime",)


def test_device_without_a_runtime_of_the_run_is_told_what_it_has_and_what_the_run_allows() -> None:
    with pytest.raises(PlanError, match=r"device pi-07: has executorch, the run allows onnxruntime, other; install"):
        choose_runtimes(profile(0, executorch=1), ("onnxruntime", "other"))


def test_place_counts_the_idle_size_of_the_runtime_and_names_it() -> None:
    both = profile(194, onnxruntime=50 * MB, executorch=100 * MB)
    assert place(both, ONE, LADDER, Steps(), PLAIN_ONLY).level is FULL
    placement = place(both, ("executorch",), LADDER, Steps(), PLAIN_ONLY)
    assert (placement.level, placement.runtime) == (HALF, "executorch")
    assert placement.chosen.describe().endswith("+ headroom 5.0, on executorch")


def test_predict_refuses_a_runtime_the_device_does_not_have() -> None:
    with pytest.raises(PlanError, match="no idle size for runtime 'executorch' in its profile \\(has onnxruntime\\)"):
        predict(profile(100), "executorch", FULL, 100 * MB, headroom=0.1)


def test_forms_are_those_that_divide_the_batch_and_that_the_run_allows() -> None:
    names = [form.name for form in forms_of(12, micro_batches=True, recompute=True)]
    assert names == ["plain", "micro:2", "micro:4", "recompute", "micro:2+recompute", "micro:4+recompute"]
    assert forms_of(12, micro_batches=False, recompute=False) == (PLAIN,)
    # Narrowing takes a tenth more time, recomputation a third.
    names = [form.name for form in forms_of(4, micro_batches=True, recompute=True, float16_activations=True)]
    assert names == [
        "plain", "micro:2", "micro:4", "keep:float16", "micro:2+keep:float16", "micro:4+keep:float16", "recompute",
        "micro:2+recompute", "micro:4+recompute",
    ]  # fmt: skip


def test_method_is_refused_for_a_runtime_that_lacks_what_one_of_its_levels_needs() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    module.input_spec = InputSpec(layout="features", shape=(4,))
    method = FjORD(module, {"levels": [1, 0.5]})

    def unable(program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        return ("several programs",) if program.variants and runtime == "small" else ()

    require_able(method, "large", unable, seed=0)
    with pytest.raises(PlanError, match="method fjord, level full, needs several programs, which runtime small cannot"):
        require_able(method, "small", unable, seed=0)


class WrittenSteps(Steps):
    """Steps of a language model: their sizes are known without an export."""

    def estimate(self, level: Level, runtime: str, form: StepForm) -> Estimate | None:
        size = round(self.sizes[level, form] * MB)
        return Estimate(size, size, is_exact=True)


HALVED, QUARTERED = StepForm(window=64), StepForm(window=32)
PARTS = {PLAIN: 1, HALVED: 2, QUARTERED: 4}
IN_WINDOWS = {(level, form): STEP_MB[level] / parts for level in LADDER for form, parts in PARTS.items()}
WINDOWED = Requests(headroom=0.1, windows=(64, 32))


@pytest.mark.parametrize(
    ("budget_mb", "expected"),
    [
        (106.0, (QUARTER, PLAIN)),  # a smaller level before a shorter window
        (105.9, (QUARTER, HALVED)),
        (95.0, (QUARTER, HALVED)),
        (94.9, (QUARTER, QUARTERED)),
    ],
)
def test_place_shortens_windows_where_no_level_fits(budget_mb: float, expected: tuple[Level, StepForm]) -> None:
    placement = place(profile(budget_mb), ONE, LADDER, WrittenSteps(IN_WINDOWS), WINDOWED)
    assert (placement.level, placement.form) == expected


def test_place_exports_nothing_to_say_by_how_much_a_written_step_is_too_large() -> None:
    steps = WrittenSteps(IN_WINDOWS)
    with pytest.raises(PlanError, match=r"the smallest is rank 1/4: 89\.5 MB .*, window:32, 0\.5 MB too much; raise"):
        place(profile(89.0), ONE, LADDER, steps, WINDOWED)
    assert steps.asked == []


@pytest.mark.parametrize(("free_mb", "base"), [(0, ""), (600, ""), (500, "int4"), (100, "int4")])
def test_place_takes_the_first_base_that_the_storage_has_room_for(free_mb: int, base: str) -> None:
    form = StepForm(base=base)
    steps = WrittenSteps({(level, form): STEP_MB[level] for level in LADDER})
    device = msgspec.structs.replace(profile(0), storage_free_bytes=free_mb * MB)
    requests = Requests(headroom=0.1, bases=(("", 496 * MB), ("int4", 278 * MB)))
    assert place(device, ONE, LADDER, steps, requests).form == form
