"""The kit lets a sound agent pass and finds the fault of each broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.conformance.findings import Finding, NotApplicable
from coordinator.conformance.session import KitOptions, named_scenarios, run_conformance
from tests.conformance_kit.small_agent import SmallAgent

CAUGHT_BY = {
    "trains-twice": ("repeated-order-is-accepted-and-done-once", "reports that differ"),
    "batch-order": ("epochs-drop-the-incomplete-batch", "from the reference"),
    "wrong-names": ("masked-weights-travel-as-kept-entries", "holds ['module.1.bias'"),
    "follows-anyone": ("order-signed-by-another-key", "carried out instead of refused"),
    "signs-nothing": ("messages-of-the-device-are-signed", "a signature of 0 bytes"),
    "forgets-blobs": ("kept-blobs-are-not-fetched-again", "blocks fetched for the third order"),
    "replays": ("settled-order-is-refused-as-replayed", "carried out instead of refused"),
    "foreign-topic": ("every-message-keeps-the-rules", "up/somebody-else/offer"),
}
"""Fault -> the scenario that has to fail, and words of what it says."""


@pytest.fixture
def options(kit_artifacts: Path) -> KitOptions:
    return KitOptions(artifacts=kit_artifacts)


def played(options: KitOptions, fault: str, *names: str) -> list[Finding]:
    return run_conformance(SmallAgent(fault), named_scenarios(names), options=options)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.runtime
def test_sound_agent_holds_what_catches_the_broken_ones(options: KitOptions) -> None:
    names = [name for name, _ in CAUGHT_BY.values()]
    found = {f.scenario: f for f in played(options, "", *names)}
    assert {name: f.seen for name, f in found.items() if f.outcome != "ok"} == {}
    assert found.keys() == set(names)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.runtime
@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_broken_agent_is_caught_by_the_scenario_of_its_fault(fault: str, options: KitOptions) -> None:
    name, words = CAUGHT_BY[fault]
    (finding,) = played(options, fault, name)
    assert (finding.outcome, words in finding.seen) == ("failed", True), finding.seen


class ByHand(SmallAgent):
    """Runs once, as an agent on a phone that somebody holds."""

    def stop(self) -> None:
        raise NotApplicable("by hand")

    kill = stop


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.runtime
def test_agent_that_runs_once_goes_on_after_a_failure(options: KitOptions) -> None:
    names = ("epochs-drop-the-incomplete-batch", "goodbye-when-it-is-stopped", "order-signed-by-another-key")
    agent = ByHand("batch-order")
    found = {f.scenario: f.outcome for f in run_conformance(agent, named_scenarios(names), options=options)}
    SmallAgent.stop(agent)
    assert [found[name] for name in names] == ["failed", "not applicable", "ok"]
