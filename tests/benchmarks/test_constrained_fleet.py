"""The run files of the constrained fleet, and what its page says of results that hold and that do not."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.constrained_fleet import BUDGETS_MB, RUNS, Fleet, Run, run_file
from benchmarks.constrained_fleet_page import holds, page
from coordinator.run_file.loading import load_config_text


@pytest.mark.parametrize("runtime", BUDGETS_MB)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.model}-{run.method}")
def test_run_file_bounds_every_device_by_its_budget(run: Run, runtime: str) -> None:
    config = load_config_text(run_file(run, Fleet(runtime, 3), cache=None))
    assert [group.budget_mb for group in config.cohort.local] == list(BUDGETS_MB[runtime])
    assert {group.ceiling for group in config.cohort.local} == {"budget"}
    assert (config.federation.rounds, config.cohort.size, config.runtime.names) == (3, 12, (runtime,))


def result(**changes: Any) -> dict[str, Any]:
    row = {"device": "device-00", "budget_mb": 96, "runtime": "onnxruntime", "rounds": 10, "level_at_peak": "keep 0.1",
           "form_at_peak": "plain", "trainers": ["python"], "predicted_mb": 90.0, "peak_mb": 80.0, "trainer_mb": 57.0,
           "supervisor_mb": 23.0, "share": 0.83, "bound": True, "kernel_peak_mb": 60.0, "kills": 0,
           "refusals": []}  # fmt: skip
    host = {
        "processor": "Cortex-A72",
        "cores": "4",
        "system": "Linux",
        "runtime": "onnxruntime 1",
        "date": "2026-01-01",
    }
    return {"model": "resnet20", "method": "prism", "batch": 32, "rounds": 10, "full_peak_mb": 135.0, "kills": 0,
            "over_budget": 0, "host": host, "devices": [{**row, **changes}]}  # fmt: skip


def test_claims_hold_for_a_device_that_uses_its_budget() -> None:
    assert all(holds(result()).values())


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"rounds": 0}, "every device takes part"),
        ({"rounds": 9}, "in every round"),
        ({"share": 0.69}, "every bound device uses 70 %"),
    ],
)
def test_claims_that_do_not_hold_are_named(changes: dict[str, Any], claim: str) -> None:
    assert not holds(result(**changes))[claim]
    assert f"{claim}: **no**" in page([result(**changes)], [])


def test_device_that_trains_the_whole_model_in_another_form_need_not_use_its_budget() -> None:
    small = result(share=0.3, level_at_peak="keep 1", form_at_peak="recomputed", refusals=["round 2: late"])
    assert all(holds(small).values())
    text = page([small], [])
    assert text.startswith("# 1 devices with 96 to 96 MB that the kernel enforces, onnxruntime 1")
    assert "| 96 | keep 1 | recomputed | python | 90.0 | 80.0 | 57.0 | 23.0 | (30 %) | 60.0 | 10 | 0 |" in text
    assert "- 96 MB, round 2: late" in text


def test_device_beyond_the_whole_model_need_not_use_its_budget() -> None:
    assert all(holds(result(share=0.3, bound=False)).values())
    assert "Not measured: resnet18 under slt." in page([result()], ["resnet18 under slt"])
