"""Runs side by side: seeds in one group, what differs, what each cost to reach a score, and unequal runs told so."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from coordinator.reporting.comparison.comparison import compare
from coordinator.reporting.comparison.page import comparison_page
from coordinator.reporting.comparison.words import result_table
from coordinator.reporting.subject import Subject
from tests.cli.conftest import Command, command
from tests.coordinator.history.small_ledger import small_ledger
from tests.coordinator.reporting.subjects import CONFIG, one_round, subject
from tests.coordinator.reporting.test_report import text

__all__ = ["command"]


def two_configurations() -> list[Subject]:
    """Three seeds of one learning rate, one of another, which is better."""
    return [*(subject(seed=seed, gain=seed / 100) for seed in (1, 2, 3)), subject(seed=1, lr=0.2, gain=0.05)]


def test_seeds_of_one_configuration_are_a_group_with_mean_and_range() -> None:
    found = compare(two_configurations())
    assert [(group.name, group.seeds) for group in found.groups] == [("lr 0.1", (1, 2, 3)), ("lr 0.2", (1,))]
    assert found.differing == ("training.lr",)
    score = found.results[0].score
    assert score is not None
    assert (score.mean, score.lowest, score.highest) == pytest.approx((0.92, 0.91, 0.93))


def test_target_is_the_best_that_all_reached_unless_it_is_given() -> None:
    # Best evaluated scores: 0.91, 0.92, 0.93 (rounds add 0.1 each, from 0.6), 0.95.
    assert compare(two_configurations()).target == pytest.approx(0.91)
    found = compare(two_configurations(), target=0.815)
    rounds = [result.rounds for result in found.results]
    assert rounds[0] is not None
    assert (rounds[0].lowest, rounds[0].highest) == (3, 4)  # 0.81 is not enough in round 3, 0.82 and 0.83 are
    assert rounds[1] is not None
    assert rounds[1].mean == 3
    sent = found.results[1].bytes
    assert sent is not None
    assert sent.mean == 9_000_000  # 1 MB up and 2 MB down in each of three rounds
    seconds = found.results[1].wall_s
    assert seconds is not None
    assert seconds.mean == 11 + 12 + 13


def test_runs_that_never_reach_the_target_are_counted() -> None:
    found = compare(two_configurations(), target=0.925)
    assert [result.reached for result in found.results] == [1, 1]
    heads, rows = result_table(found)
    assert rows[0][heads.index("rounds to 0.925")] == "4; 1 of 3 reach it"
    assert result_table(compare(two_configurations(), target=0.99))[1][1][3] == "0 of 1 reach it"


def test_a_metric_that_falls_has_its_best_at_the_bottom() -> None:
    rounds = tuple(one_round(n, 0.0, scores={"server": {"loss": 1.0 / n}}) for n in (1, 2, 3))
    other = tuple(one_round(n, 0.0, scores={"server": {"loss": 1.5 / n}}) for n in (1, 2, 3))
    found = compare([subject(rounds=rounds, summary={}), subject(lr=0.2, rounds=other, summary={})])
    assert (found.metric, found.is_lower_better, found.target) == ("loss", True, 0.5)
    assert [result.rounds.mean for result in found.results if result.rounds] == [2, 3]


def test_other_models_and_data_are_told_and_not_refused() -> None:
    other = CONFIG.replace('build = "mlp"', 'build = "resnet20"').replace('source = "digits"', 'source = "cifar10"')
    found = compare([subject(), subject(config_text=other.format(seed=1, lr=0.1), state="running")])
    told = " ".join(found.objections)
    assert "different models (mlp, resnet20)" in told
    assert "different data" in told
    assert "Not finished, shown so far: runs/kitchen-1." in told
    assert len(found.results) == 2


def test_a_run_before_its_first_score_has_no_figures() -> None:
    found = compare([subject(), subject(lr=0.2, rounds=(), summary={}, state="running")])
    assert found.results[1].score is None
    assert found.results[1].reached == 0
    comparison_page(found)


def test_page_has_curves_with_bands_and_nothing_from_elsewhere() -> None:
    page = comparison_page(compare(two_configurations()))
    ElementTree.fromstring(re.sub(r"<(meta[^>]*)>", r"<\1/>", page.removeprefix("<!doctype html>")))
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<polygon") == 2  # scores and losses of the group with several seeds
    told = text(page)
    assert "lr 0.1 beside lr 0.2" in told
    assert "A line with a band is the mean of several seeds" in told
    assert "training.lr 0.1 0.2" in told
    assert "nothing but the seed" in text(comparison_page(compare(two_configurations()[:2]))).lower()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of two runs with the same ledger."""
    folder = tmp_path_factory.mktemp("runs")
    one, two = folder / "one", folder / "two"
    one.mkdir()
    small_ledger(one / "ledger.sqlite").close()
    shutil.copytree(one, two)
    return one, two


def test_compare_verb_reads_runs_and_writes_a_table_a_page_and_a_line(
    two_runs: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    one, two = two_runs
    outcome = command("compare", one, two, "--out", tmp_path / "compare.html")
    assert outcome.status == 0
    assert "nothing differs but the seed" in outcome.out
    assert "note: Not finished" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= max(80, 6 + len(str(tmp_path / "compare.html")))
    assert (tmp_path / "compare.html").is_file()
    line = command("compare", one, two, "--json").line
    (group,) = line["groups"]
    assert [run["run_dir"] for run in group["runs"]] == [str(one), str(two)]
    assert group["score"] == {"mean": 0.5, "lowest": 0.5, "highest": 0.5}


def test_one_run_is_no_comparison(tmp_path: Path, command: Command) -> None:
    outcome = command("compare", tmp_path, "--json")
    assert outcome.status == 2
    assert "name two or more" in outcome.error["message"]
