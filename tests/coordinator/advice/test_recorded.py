"""The map: its file, and what is read from a course."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.advice.recorded import PACKAGED, Course, read_map
from edge.contracts.errors import ConfigError
from tests.coordinator.advice.small_map import SETTING, course

ROOT = Path(__file__).parents[3]


def test_rounds_are_counted_on_the_mean_of_the_seeds() -> None:
    fedavg = SETTING.courses[0]
    assert fedavg.mean() == pytest.approx([0.5, 0.85, 0.95])
    assert [fedavg.rounds_to(target) for target in (0.5, 0.86, 0.96)] == [1, 3, None]


def test_rounds_are_those_in_which_the_model_was_scored() -> None:
    scored = Course(label="x", method="fedavg", options={}, rounds=[20, 40], accuracy={"1": [0.5, 0.7]})
    assert [scored.rounds_to(target) for target in (0.5, 0.6, 0.8)] == [20, 40, None]


def test_one_lucky_round_is_no_arrival() -> None:
    jumping = course("x", "fedavg", {}, [0.5, 0.9, 0.6, 0.8, 0.8])
    assert jumping.expected() == pytest.approx([0.5, 0.75, 0.75, 0.8, 0.8])
    assert [jumping.rounds_to(target) for target in (0.75, 0.8, 0.9)] == [2, 4, None]


def test_a_mean_ends_where_the_shortest_seed_does() -> None:
    assert course("x", "fedavg", {}, [0.5, 0.7], [0.5]).mean() == [0.5]


def test_the_best_of_a_setting_is_any_methods_after_any_round() -> None:
    assert SETTING.best() == pytest.approx(0.95)


def test_the_packages_map_is_whole() -> None:
    found = read_map()
    for setting in found.settings:
        assert (ROOT / setting.file).exists()
        labels = [each.label for each in setting.courses]
        assert len(labels) == len(set(labels))
        assert setting.source
        for each in setting.courses:
            assert each.rounds == sorted(set(each.rounds))
            assert all(1 <= len(values) <= len(each.rounds) for values in each.accuracy.values())
            assert all(0 <= value <= 1 for values in each.accuracy.values() for value in values)
            assert each.accuracy


def test_a_map_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    with pytest.raises(ConfigError, match=f"{path} cannot be read"):
        read_map(path)
    path.write_bytes(PACKAGED.read_bytes().replace(b"advice-map/1", b"advice-map/9"))
    with pytest.raises(ConfigError, match="advice-map/9', this release reads"):
        read_map(path)
