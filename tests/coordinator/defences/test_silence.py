"""Devices that take places in cohorts and give nothing: left out for a while, and never for one slow round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.defences.silence import AFTER, MOST_ROUNDS, still_asked, wasted_in_a_row
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from edge.contracts.plan import assignment_id
from tests.coordinator.rounds.in_memory_devices import report

DEVICES = ["pi-1", "pi-2", "pi-3", "pi-4"]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        yield ledger


def attempt(ledger: Ledger, number: int, outcomes: dict[str, str], attempt: int = 0) -> None:
    """One attempt that is given up, with what came of each device's order."""
    no = {"level": "full", "cut": {}, "artifact_digest": "0" * 64, "weights_digest": "", "order": b""}
    entries = {
        device: Assignment(
            assignment_id=assignment_id("fed", number, device, attempt),
            round=number,
            attempt=attempt,
            device=device,
            **no,
        )
        for device in outcomes
    }
    ledger.rounds.plan(number, attempt, deadline_s=60, assignments=list(entries.values()))
    ledger.rounds.move(number, attempt, "published")
    for device, outcome in outcomes.items():
        entry = entries[device]
        if outcome == "reported":
            key = entry.assignment_id
            ledger.updates.record(key, update_digest=key, size=0, report=report(entry))
        elif outcome == "refused":
            ledger.assignments.move(entry.assignment_id, "refused", code="x", reason="y")
        elif outcome in ("policy", "policy-wait", "masks-told"):
            ledger.assignments.move(entry.assignment_id, "refused", code=outcome, reason="y")
        elif outcome == "expired":
            ledger.assignments.expire(entry.assignment_id)
        elif outcome == "revoked":
            ledger.assignments.move(entry.assignment_id, "expired", code="revoked", reason="y")
    ledger.rounds.move(number, attempt, "collecting")
    ledger.rounds.move(number, attempt, "abandoned", reason="test")


def asked(ledger: Ledger, round_index: int, enough: int = 2, *, counts_expired: bool = True) -> list[str]:
    wasted = wasted_in_a_row(ledger, round_index, counts_expired=counts_expired)
    return still_asked(DEVICES, wasted, round_index, enough=enough)


@pytest.mark.parametrize("code", ["policy", "policy-wait", "masks-told"])
def test_what_an_owner_or_masks_forbid_is_no_waste(ledger: Ledger, code: str) -> None:
    for number in range(2 * AFTER):
        attempt(ledger, number, {"pi-1": code, "pi-2": "reported", "pi-3": "reported"})
    assert asked(ledger, 2 * AFTER) == DEVICES


@pytest.mark.parametrize("outcome", ["refused", "expired"])
def test_who_wastes_orders_sits_out_while_others_are_enough(ledger: Ledger, outcome: str) -> None:
    for number in range(AFTER):
        assert asked(ledger, number) == DEVICES
        attempt(ledger, number, {"pi-1": outcome, "pi-2": "reported", "pi-3": "reported"})
    rest = ["pi-2", "pi-3", "pi-4"]
    assert [asked(ledger, number) for number in range(AFTER, 2 * AFTER)] == [rest] * AFTER
    assert asked(ledger, 2 * AFTER) == DEVICES
    assert asked(ledger, AFTER, enough=4) == DEVICES


def test_attempts_of_one_round_count_each(ledger: Ledger) -> None:
    for number in range(AFTER):
        attempt(ledger, 0, {"pi-1": "expired", "pi-2": "reported"}, attempt=number)
    assert "pi-1" not in asked(ledger, 0)


def test_one_slow_round_is_held_against_nobody(ledger: Ledger) -> None:
    for number, outcome in enumerate(["expired", "expired", "reported", "revoked", "expired", "refused", "reported"]):
        attempt(ledger, number, {"pi-1": outcome, "pi-2": "reported"})
        assert asked(ledger, number + 1) == DEVICES


def test_attempt_in_which_nobody_reported_says_nothing(ledger: Ledger) -> None:
    for number in range(2 * AFTER):
        attempt(ledger, number, {"pi-1": "expired", "pi-2": "expired"})
    assert asked(ledger, 2 * AFTER) == DEVICES


def test_orders_beside_the_cohort_may_expire(ledger: Ledger) -> None:
    for number in range(AFTER):
        attempt(ledger, number, {"pi-1": "expired", "pi-2": "reported"})
    assert asked(ledger, AFTER, counts_expired=False) == DEVICES


def test_of_those_that_waste_the_least_wasteful_are_asked_where_some_are_needed() -> None:
    wasted = {"pi-1": (5, 9), "pi-2": (3, 9), "pi-3": (20, 9)}
    assert still_asked(DEVICES, wasted, 10, enough=2) == ["pi-2", "pi-4"]
    assert still_asked(DEVICES, wasted, 10 + MOST_ROUNDS, enough=2) == DEVICES
