"""The kit lets a sound agent pass and finds the fault of each broken one."""

from __future__ import annotations

import pytest
from small_agent import SmallAgent

from coordinator.conformance import Finding, KitOptions, run_conformance
from coordinator.conformance.session import named_scenarios

CAUGHT_BY = {
    "trains-twice": "repeated-order-is-accepted-and-done-once",
    "batch-order": "epochs-drop-the-incomplete-batch",
    "one-step-short": "micro-batches-add-up-to-a-step",
    "wrong-names": "masked-weights-travel-as-kept-entries",
    "follows-anyone": "order-signed-by-another-key",
    "signs-nothing": "messages-of-the-device-are-signed",
    "forgets-blobs": "kept-blobs-are-not-fetched-again",
    "replays": "settled-order-is-refused-as-replayed",
    "foreign-topic": "every-message-keeps-the-rules",
}
OPTIONS = KitOptions(patience=0.5)


def played(fault: str, *names: str) -> list[Finding]:
    return run_conformance(SmallAgent(fault), named_scenarios(names), options=OPTIONS)


@pytest.mark.broker
@pytest.mark.runtime
def test_sound_agent_holds_what_catches_the_broken_ones() -> None:
    # A device that forgets everything when it is stopped is not what this one is for.
    names = [name for name in CAUGHT_BY.values() if name != "settled-order-is-refused-as-replayed"]
    found = {f.scenario: f for f in played("", *names)}
    assert {name: (f.outcome, f.seen) for name, f in found.items() if f.outcome != "ok"} == {}
    assert found.keys() == set(names)


@pytest.mark.broker
@pytest.mark.runtime
@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_broken_agent_is_caught_by_the_scenario_of_its_fault(fault: str) -> None:
    (finding,) = played(fault, CAUGHT_BY[fault])
    assert finding.outcome == "failed", finding.seen
