"""A device whose owner's policy forbids what a run asks: it is left out, with the rule in every place that tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge.policy.order_check import PolicyGuard
from edge.policy.policy_file import SitePolicy
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def guard(folder: Path, rules: dict[str, Any]) -> PolicyGuard:
    folder.mkdir(parents=True, exist_ok=True)
    return PolicyGuard(msgspec.convert(rules, SitePolicy), folder)


def test_round_is_made_without_a_device_whose_policy_forbids_the_method(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, min_reports=2, rounds=2)
    with InProcessFederation(tmp_path, exports, text) as stage:
        for number, device in enumerate(("pi-1", "pi-2", "strict")):
            stage.write_data(device, number)
        stage.agent("pi-1")
        stage.agent("pi-2", policy=guard(tmp_path / "pi-2", {"methods": {"allow": ["fedhm"]}}))
        stage.agent("strict", policy=guard(tmp_path / "strict", {"methods": {"deny": ["fedhm"]}}))
        stage.run()
        assert [(r, devices) for r, _, devices in stage.committed()] == [
            (0, ["pi-1", "pi-2"]),
            (1, ["pi-1", "pi-2"]),
        ]
        reason = "$.methods.deny: [\"fedhm\"], the order's method is 'fedhm'"
        (refused,) = [e for e in stage.ledger.assignments.of_attempt(0, 0) if e.state == "refused"]
        assert (refused.device, refused.code, refused.reason) == ("strict", "policy", reason)
        assert len(stage.ledger.assignments.of_attempt(1, 0)) == 2, "it is not asked again"
        rounds = [entry.metrics for entry in stage.ledger.rounds.all()]
        assert rounds[0]["policy_refusals"] == {"strict": reason}
        assert "policy_refusals" not in rounds[1]
        assert stage.lines.having("strict refuses round 0 (policy)", reason)
        assert len(stage.lines.having("strict is not asked again in this run", reason)) == 1
        (entry,) = [e for e in stage.ledger.audit_log.entries() if e.action == "order-refused"]
        assert (entry.actor, entry.values()["code"], entry.values()["why"]) == ("device:strict", "policy", reason)
        assert stage.ledger.reliabilities.all() == {}
    assert "order's method is 'fedhm'" in (tmp_path / "strict" / "policy-log.jsonl").read_text()
    assert '"answer":"taken"' in (tmp_path / "pi-2" / "policy-log.jsonl").read_text()
