"""The list of points is whole: what the code passes is listed, what is listed is passed, anything else raises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.rounds.crash_points import POINTS, known_only, point_of

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [*ROOT.joinpath("coordinator").rglob("*.py"), *ROOT.joinpath("edge", "serving").glob("*.py")]
PASSED = re.compile(r'on_point\(f?"([a-z-]+?)(-\{\w+\})?"\)')


def test_points_in_the_code_are_those_of_the_list() -> None:
    found = {(match[1], bool(match[2])) for path in SOURCES for match in PASSED.finditer(path.read_text())}
    assert found == {(point.name, point.numbered) for point in POINTS.values()}


def test_numbered_point_is_found_by_its_passings() -> None:
    assert point_of("aggregated-0") is point_of("aggregated-17") is POINTS["aggregated"]


@pytest.mark.parametrize("name", ["", "agregating", "aggregated", "aggregated-", "aggregated-x", "planned-1"])
def test_unknown_point_raises_and_lists_the_known(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is no point of a run; .*aggregated-<number>.*released"):
        point_of(name)


def test_known_only_passes_on_what_is_known() -> None:
    passed: list[str] = []
    on_point = known_only(passed.append)
    on_point("planned")
    with pytest.raises(ValueError, match="'plannned'"):
        on_point("plannned")
    assert passed == ["planned"]
