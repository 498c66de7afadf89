"""The runs behind the map of ``apportion advise``: what is run, and what is read of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.advice_earlier import EARLIER
from benchmarks.advice_settings import (
    CANDIDATES,
    HELD,
    SETTINGS,
    held_config,
    read_lines,
    setting_config,
    with_candidate,
)
from coordinator.advice.recorded import read_map

ROOT = Path(__file__).parents[2]


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert read_lines(path) == {}
    whole = {"setting": "digits", "label": "fedavg", "seed": 1, "accuracy": [0.5]}
    path.write_text(json.dumps(whole) + "\n" + json.dumps({**whole, "seed": 2})[:30])
    assert read_lines(path) == {("digits", "fedavg", 1): whole}


def test_every_candidate_has_its_own_label() -> None:
    assert len({candidate.label for candidate in CANDIDATES}) == len(CANDIDATES)


def test_only_the_method_differs_in_a_setting() -> None:
    config = setting_config(SETTINGS[0], 2)
    for candidate in CANDIDATES:
        changed = with_candidate(config, candidate)
        assert changed.method.name == candidate.method
        assert (changed.training, changed.data, changed.cohort) == (config.training, config.data, config.cohort)
        assert changed.federation == config.federation
    assert config.federation.seed == 2


@pytest.mark.parametrize("held", HELD, ids=lambda held: held.name)
def test_held_settings_are_no_recorded_ones(held: object) -> None:
    config = held_config(held)  # type: ignore[arg-type]
    assert all(config != setting_config(name, seed) for name in SETTINGS for seed in (1, 2, 3))
    assert config.federation.seed not in (1, 2, 3)


def test_the_map_has_the_earlier_figures_as_they_were_published() -> None:
    recorded = {setting.name: setting for setting in read_map().settings}
    for earlier in EARLIER:
        setting, page = recorded[earlier.name], (ROOT / earlier.source).read_text(encoding="utf-8")
        assert (ROOT / "examples" / earlier.file).exists()
        assert [course.label for course in setting.courses] == list(earlier.courses)
        for course in setting.courses:
            for values in course.accuracy.values():
                for value in values:
                    assert f"{100 * value:.1f}" in page or f"{100 * value:.2f}" in page
