"""Devices with questions of their own answer them with the model that they are sent: counts and hits are summed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli.assembly import resume_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from tests.edge.language.tiny_tokenizer import write_tokenizer
from tests.federation.small_run import crash
from tests.language_models import run_text

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

QUESTIONS = {"device-00": 12, "device-01": 20, "device-02": 4}
"""The last has too few to be told."""


def give(folder: Path, count: int) -> None:
    """A text and so many questions in the folder of a device, in place of the share that it was dealt."""
    write_tokenizer(folder / "tokenizer.json")
    (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 8\nchoices = "questions.jsonl"\n')
    (folder / "a.txt").write_text("the cat sat on the mat and the dog\n" * 40)
    texts = [{"prompt": f"{n} is", "choices": [" odd", " even", " it"], "answer": (n + 1) % 2} for n in range(count)]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, texts)))


def test_accuracy_is_that_of_all_devices_questions_together(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    text = run_text(rounds=1).replace("vocabulary = 30", "vocabulary = 300")
    crash(run_dir, "planned", 1, text=text.replace("[evaluation]", "[evaluation]\ndevices = 0.3"))
    for device, count in QUESTIONS.items():
        give(run_dir / "devices" / device / "data", count)
    resume_run(run_dir, RunOptions(quiet=True))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        last = ledger.rounds.last_committed()
        assert last is not None
        sums = {
            update.report.device: update.report.scores.sums
            for update in ledger.updates.counted(last.round, last.attempt)
            if update.report.scores is not None
        }
    assert {device: found.get("sum:questions") for device, found in sums.items()} == {**QUESTIONS, "device-02": None}
    found = last.metrics["device_evaluation"]
    assert (found["devices"], found.get("other_sums")) == (3, None)
    for name, key in (("choice_accuracy", "sum:choice_hits"), ("choice_mean_accuracy", "sum:choice_mean_hits")):
        hits = sum(found.get(key, 0.0) for found in sums.values())
        assert found["metrics"][name]["mean"] == pytest.approx(hits / 32)
        assert sum(found["metrics"][name]["histogram"]["devices"]) == 2
    assert found["metrics"]["perplexity"]["mean"] > 1
