"""The fault harness itself: schedules are the seeds', faults can happen, and what it looks for it finds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.crash_points import POINTS
from tests.chaos.faults import ACTIONS, Event, Fault
from tests.chaos.framing import Framer, Packet
from tests.chaos.liars.kinds import KINDS
from tests.chaos.liars.lies import LIES
from tests.chaos.schedule import schedule

ROOT = Path(__file__).parents[2]


def test_schedule_is_the_seeds_and_nobody_elses() -> None:
    assert schedule(7) == schedule(7)
    assert len({schedule(seed).text().split("\n", 1)[1] for seed in range(1, 51)}) == 50
    code = "from tests.chaos.schedule import schedule; print(schedule(7).text(), end='')"
    elsewhere = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert elsewhere.stdout == schedule(7).text()


def test_two_hundred_seeds_hold_every_action_and_every_target() -> None:
    kinds = Counter(fault.kind for seed in range(1, 201) for fault in schedule(seed).faults)
    wanted = {f"{action.name} {target}" for action in ACTIONS.values() for target in action.targets}
    assert wanted - kinds.keys() == set()
    points = {f.at.name.removeprefix("coordinator@") for s in range(1, 201) for f in schedule(s).faults}
    stems = {name.rpartition("-")[0] if name[-1].isdigit() else name for name in points}
    assert {name for name in POINTS if name not in stems | {p for p in points}} == set()


def test_every_seed_has_a_liar_and_each_kind_its_share() -> None:
    kinds = Counter(schedule(seed).liars[0].kind for seed in range(1, 201))
    assert set(kinds) == set(KINDS) == {*LIES, "broker"}
    assert max(kinds.values()) - min(kinds.values()) <= 1
    assert {len(schedule(seed).liars) for seed in range(1, 201)} == {1, 2}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("coordinator@comitted", "'comitted' is no point of a run; one of before-plan"),
        ("device-01@jump", "no move 'jump'; one of acked"),
        ("device-01>sing", "no message kind 'sing'; one of hello"),
        ("broker@order", "is no event: write PARTY@POINT"),
    ],
)
def test_an_event_that_cannot_happen_is_refused_with_those_that_can(event: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Event(event, 1)


@pytest.mark.parametrize(
    ("action", "target", "words"),
    [
        ("melt", "coordinator", "'melt' is no action; one of kill"),
        ("flip", "device-01", "flip is not for device-01; for coordinator"),
        ("drop", "device-01", "drop is done to a message on the link of device-01, not at coordinator@recorded #1"),
    ],
)
def test_a_fault_that_nobody_can_carry_out_is_refused(action: str, target: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Fault(Event("coordinator@recorded", 1), action, target)


def test_packets_are_the_same_behind_the_relay_however_the_bytes_come() -> None:
    publish = Packet(0x32, b"\x00\x03a/b\x00\x07" + b"x" * 300)
    wire = Packet(0xC0, b"").to_bytes() + publish.to_bytes()
    for size in (1, 2, 7, 1000):
        framer = Framer()
        packets = [p for at in range(0, len(wire), size) for p in framer.feed(wire[at : at + size])]
        assert packets == [Packet(0xC0, b""), publish]
    assert (publish.topic, publish.qos, publish.payload) == ("a/b", 1, b"x" * 300)
    assert publish.again().to_bytes()[0] == 0x3A
    assert publish.acknowledgement() == Packet(0x40, b"\x00\x07")
    assert Packet(0x30, b"\x00\x03a/bx").acknowledgement() is None
    assert publish.with_payload(b"y").to_bytes() == b"\x32\x08\x00\x03a/b\x00\x07y"


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """What the harness found: by the name of a planted bug, and in one seed run ``first`` and ``second``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.self_check"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("plant", "verdict", "words"),
    [
        ("acknowledge-unwritten", "lost", "was acknowledged and has no row"),
        ("leave-one-out", "lost", "the update of device-03 participates and is not summed"),
        ("sum-one-twice", "duplicated", "the update of device-00 is summed twice"),
        ("change-one-bit", "differing", "the committed model is not the mean of its updates"),
        ("name-nobody", "unnamed", "liar liar-00 (extreme, 0)"),
        ("reject-an-honest-device", "honest_barred", "device-00, round 0.0: rejected update-rejected"),
        ("screen-nobody", "differing", "round 0.0 counts the update of liar-00"),
    ],
)
def test_a_planted_bug_is_found_for_what_it_is(
    found: dict[str, dict[str, Any]], plant: str, verdict: str, words: str
) -> None:
    assert any(words in line for line in found[plant][verdict]), found[plant]
    others = {"lost", "duplicated", "honest_barred"} - {verdict}
    assert all(found[plant][other] == [] for other in others), found[plant]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.runtime
def test_a_replayed_seed_injects_the_same_faults_and_ends_well(found: dict[str, dict[str, Any]]) -> None:
    first, second = found["first"], found["second"]
    assert len(first["injected"]) >= 2
    assert sorted(first["injected"]) == sorted(second["injected"])
    for outcome in (first, second):
        assert [outcome[what] for what in ("lost", "duplicated", "differing", "trouble")] == [[], [], [], []]
