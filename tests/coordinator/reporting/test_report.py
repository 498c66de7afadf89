"""Reports: what a page says of a run, that nothing is fetched for it, and runs that are not finished."""

from __future__ import annotations

import html
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from coordinator.history.history import History
from coordinator.methods import METHODS
from coordinator.reporting.reading import read_subject, subject_of
from coordinator.reporting.report import report
from coordinator.reporting.sections.asked import method_words
from coordinator.reporting.subject import Subject
from edge.contracts.errors import ConfigError
from tests.cli.conftest import Command, command
from tests.coordinator.history.small_ledger import small_ledger
from tests.coordinator.reporting.subjects import one_round, subject

__all__ = ["command"]


def text(page: str) -> str:
    """What is read on a page, its tags and style gone."""
    body = re.sub(r"<(style|title).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    small_ledger(tmp_path / "ledger.sqlite").close()
    return tmp_path


def test_page_is_whole_by_itself() -> None:
    page = report(subject())
    assert "<script" not in page
    assert re.findall(r"(?:src|href)=\"(?!#)", page) == []
    assert "http" not in re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert "@import" not in page
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    ElementTree.fromstring(re.sub(r"<(meta[^>]*)>", r"<\1/>", page.removeprefix("<!doctype html>")))


def test_links_lead_to_sections_that_are_there() -> None:
    page = report(subject())
    assert set(re.findall(r'href="#([^"]+)"', page)) == set(re.findall(r'<h2 id="([^"]+)"', page))


def test_course_of_a_run_is_told_in_sentences() -> None:
    told = text(report(subject()))
    for sentence in (
        "The final model reached accuracy 0.9000 on the held-out data.",
        "4 of 4 rounds of training were done in 50.0 s.",
        "the longest was round 4 with 14.0 s, of which 8.0 s for training and sending.",
        "Round 2 was tried again after attempt 1: 1 reports, 2 needed.",
        "2 of 3 devices trained in at least one round.",
        "pi-<3> never did: no level fitted the memory budget, or no round chose it.",
        "pi-2: update set aside once (norm-outlier).",
        "The update of pi-2 in round 3 was set aside and counts in no sum: norm-outlier.",
        "pi-2 took more memory than the budget allows.",
        "Method: FedHM: each device trains a low-rank factorization of the global model, at the rank it can afford, "
        "with levels = [1, 8].",
        "Data: digits, dealt by Dirichlet(0.5), unevenly by class to 3 devices.",
        "8.0 MB to devices and 4.0 MB from them, 12.0 MB in all. With headers and repeats 14.0 MB went over the wire.",
        "devices at work, all of them together 1 min 30 s",
        "no device counts it",
        "this run gives no differential privacy",
        "coordinator: apportion 1.2.3",
        "apportion run runs/kitchen-1/config.toml --seed 1 --run-dir runs/again",
        "ab" * 32,
    ):
        assert sentence in told


def test_processor_time_is_told_in_all_by_round_and_by_point_of_accuracy() -> None:
    told = text(report(subject(cpu_s=360.0, joules=1234.4)))
    assert "processor time of the devices' trainings 6 min 0 s" in told
    assert "the same in a round 1 min 30 s" in told
    assert "the same for each point of accuracy, of 90.0 4.0 s" in told
    assert "energy of the boards that count theirs 1,234 J" in told
    assert "no device counts it" not in told


def test_names_from_a_run_cannot_become_markup_and_passwords_are_left_out() -> None:
    page = report(subject(name="<b>", folder="runs/a&b"))
    assert "<b>" not in page
    assert "pi-<3>" not in page
    assert "secret" not in page
    assert "mqtt://me:...@broker.lan" in page


def test_a_run_that_goes_on_is_shown_so_far() -> None:
    found = subject(state="running", summary={}, rounds=(one_round(1, 0.6),), failed=(), quarantined=())
    told = text(report(found))
    assert "kitchen so far" in told
    assert "The run is not finished: this page shows 1 round so far." in told
    assert "The newest evaluated model, of round 1, has accuracy 0.6000." in told
    assert "Every round succeeded at its first attempt." in told


def test_a_run_before_its_first_round_has_a_page() -> None:
    told = text(report(subject(state="running", summary={}, rounds=(), devices=(), failed=(), quarantined=())))
    assert "No round is committed yet." in told
    assert "not scored yet" in told


def test_lost_losses_and_privacy_are_told() -> None:
    rounds = (one_round(1, 0.6, epsilon=0.5, delta=1e-5), one_round(2, 0.7, loss=None, epsilon=0.75, delta=1e-5))
    told = text(report(subject(rounds=rounds)))
    assert "In 1 rounds the loss was no number." in told
    assert "All rounds together spent epsilon 0.750 at delta 1e-05" in told


def test_many_rounds_and_devices_stay_a_page_of_bearable_size() -> None:
    rounds = tuple(one_round(n, 0.5 + n / 2000) for n in range(1, 501))
    devices = tuple(subject().devices[i % 2] for i in range(2000))
    page = report(subject(rounds=rounds, devices=devices, failed=(), quarantined=()))
    assert len(page) < 1_000_000
    assert "The first 500 of 2,000 devices" in text(page)


def test_a_run_is_read_from_its_ledger(run_dir: Path) -> None:
    found = read_subject(run_dir)
    assert (found.name, found.seed, found.is_finished, found.is_simulated) == ("small", 3, False, False)
    assert [(r.number, r.loss, r.reports) for r in found.rounds] == [(1, 2.0, 2), (2, 1.5, 2)]
    assert [(entry.number, entry.attempt, entry.why) for entry in found.failed] == [(1, 1, "1 reports, 2 needed")]
    assert found.quarantined == ((2, "pi-2", "norm-outlier"),)
    assert found.rounds[0].scores["rank 4"] == {"accuracy": 0.25, "loss": 2.5}
    assert found.rounds[1].epsilon == 1.25
    assert found.wire_bytes == {"up": 16, "down": 31}
    problems = {device.device: device.problems for device in found.devices}
    assert "refused work once" in problems["pi-3"]
    assert "update set aside once (norm-outlier)" in problems["pi-2"]
    assert "sits out until round 5" in problems["pi-2"]
    assert found.digests["run file"]


def test_summary_of_a_run_that_ends_makes_it_finished(run_dir: Path) -> None:
    with History.of(run_dir) as history:
        found = subject_of(history, str(run_dir), summary={"accuracy": 0.75, "wall_s": 4.0})
    assert (found.is_finished, found.score, found.wall_s) == (True, 0.75, 4.0)


def test_report_verb_writes_the_page_of_an_unfinished_run(run_dir: Path, command: Command) -> None:
    outcome = command("report", run_dir, "--out", run_dir / "pages" / "so-far.html")
    assert outcome.status == 0
    assert outcome.out == f"{run_dir}/pages/so-far.html (so far: 2 of 3 rounds)\n"
    assert "small" in (run_dir / "pages" / "so-far.html").read_text()
    assert command("report", run_dir, "--json").line["rounds"] == 2
    assert (run_dir / "report.html").is_file()


@pytest.mark.parametrize("make", [False, True])
def test_a_folder_without_a_run_is_refused_with_what_to_do(tmp_path: Path, make: bool) -> None:
    folder = tmp_path / "none"
    if make:
        folder.mkdir()
    with pytest.raises(ConfigError, match="RUN_DIR") as raised:
        read_subject(folder)
    assert "give the directory of a run" in raised.value.hint


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_told_in_a_sentence_with_its_source(name: str) -> None:
    words, source = method_words(name)
    assert words
    assert source


def test_a_method_of_ones_own_has_its_name() -> None:
    found: Subject = subject(config_text='[method]\nname = "mine.methods:Own"\n[training]\nlr = 1\n')
    assert "Method: mine.methods:Own." in text(report(found))
