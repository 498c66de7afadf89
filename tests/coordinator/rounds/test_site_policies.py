"""Who is asked again after a refusal by policy: nobody who refused for good; others later, or where they are needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.rounds.stages import site_policy
from coordinator.rounds.stages.site_policy import ASK_AGAIN_S, SitePolicies
from tests.coordinator.ledger.test_rounds import FEDERATION, collecting

ALL = ["a", "b", "c", "d"]


class Run:
    """A federation as far as the stage looks at it, and its clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = Ledger.create(folder / "ledger.sqlite", federation=FEDERATION, config="", seed=0)
        self.config = SimpleNamespace(cohort=SimpleNamespace(min_reports=2))
        self.said: list[str] = []
        self.progress = SimpleNamespace(say=self.said.append)
        self.now = 1000.0
        monkeypatch.setattr(site_policy.time, "monotonic", lambda: self.now)

    def refuse(self, round_index: int, attempt: int = 0, **codes: str) -> None:
        """A round in which devices refuse with these codes, abandoned."""
        for entry in collecting(self.ledger, *codes, round_index=round_index, attempt=attempt):
            code = codes[entry.device].replace("_", "-")
            self.ledger.assignments.move(entry.assignment_id, "refused", code=code, reason=f"$.x: {code}")
        self.ledger.rounds.move(round_index, attempt, "abandoned")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Run(tmp_path, monkeypatch)
    yield made
    made.ledger.close()


def test_who_refused_for_good_is_not_asked_again_also_after_a_restart(run: Any) -> None:
    stage = SitePolicies()
    assert stage.eligible(run, ALL, 0) == ALL
    run.refuse(0, a="policy", b="device_refused")
    assert stage.eligible(run, ALL, 0) == ["b", "c", "d"]
    run.refuse(0, 1, c="policy")
    assert stage.eligible(run, ALL, 0) == ["b", "d"]
    assert len(run.said) == 2
    assert "a is not asked again in this run, its owner's policy says $.x: policy" in run.said
    assert SitePolicies().eligible(run, ALL, 5) == ["b", "d"]
    assert stage.eligible(run, ["a", "c"], 1) == []


def test_who_waits_is_asked_after_a_while_or_where_too_few_others_are_left(run: Any) -> None:
    stage = SitePolicies()
    run.refuse(0, a="policy_wait", b="policy_wait")
    assert stage.eligible(run, ALL, 1) == ["c", "d"]
    assert stage.eligible(run, ["a", "b", "c"], 1) == ["a", "b", "c"]
    run.now += ASK_AGAIN_S - 1
    assert stage.eligible(run, ALL, 2) == ["c", "d"]
    run.now += 1
    assert stage.eligible(run, ALL, 3) == ALL
    assert run.said == []


def test_metrics_name_who_refused_the_round_with_the_rule(run: Any) -> None:
    run.refuse(0, a="policy", b="policy_wait", c="bad_data")
    stage, current = SitePolicies(), SimpleNamespace(round=0)
    assert stage.metrics(run, current, "train", None) == {  # type: ignore[arg-type]
        "policy_refusals": {"a": "$.x: policy", "b": "$.x: policy-wait"}
    }
    assert stage.metrics(run, SimpleNamespace(round=1), "train", None) == {}  # type: ignore[arg-type]
