"""A browser's profile, as the web agent's tests made it, is a device to the planner like any other."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from coordinator.planning.prediction import PLAIN, expected_growth, idle_bytes, timing
from edge.contracts.manifest import Cost
from profiles.device import DeviceProfile

RECORDED = Path(__file__).parents[2] / "edge" / "web" / "test" / "device" / "profile.json"
RUNTIME = "onnxruntime_web"


@pytest.fixture
def profile() -> DeviceProfile:
    found = json.loads(RECORDED.read_text())
    assert not found.keys() - {field.name for field in msgspec.structs.fields(DeviceProfile)}
    # The agent puts in what its trainer told.
    found |= {"trainer_idle_bytes": {RUNTIME: 30_000_000}, "max_threads": {RUNTIME: 2}}
    return msgspec.convert(found, DeviceProfile)


def test_browser_profile_has_what_the_planner_needs(profile: DeviceProfile) -> None:
    assert profile.ceiling_bytes == 400_000_000
    supervisor, trainer = idle_bytes(profile, RUNTIME)
    assert (supervisor > 20_000_000, trainer) == (True, 30_000_000)
    assert profile.throttling == ("pressure-serious",)


def test_browser_profile_lines_predict_what_was_measured(profile: DeviceProfile) -> None:
    # The measurements are those of edge/web/test/device/profile.test.ts: (2 MB, 10 MB) and (60 MB, 90 and 100 MB).
    assert expected_growth(profile, RUNTIME, 2_000_000)[0] == 10_000_000
    assert expected_growth(profile, RUNTIME, 60_000_000)[:2] == (100_000_000, 0)
    assert expected_growth(profile, RUNTIME, 120_000_000)[0] == pytest.approx(200_000_000, rel=1e-6)


def test_browser_profile_steps_choose_the_threads(profile: DeviceProfile) -> None:
    large = Cost(1, 1, 40_000_000, 0, 0, 60_000_000, 32, graph_bytes=90_000)
    assert timing(profile, RUNTIME, large, PLAIN, threads=1).step_ms == pytest.approx(150, rel=1e-3)
    chosen = timing(profile, RUNTIME, large, PLAIN, threads=0)
    assert (chosen.threads, chosen.step_ms) == (2, pytest.approx(90, rel=1e-3))
