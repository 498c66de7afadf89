"""Whatever a tracker does, the run neither waits nor ends; what it missed is counted and told once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from coordinator.tracking.delivery import Delivery
from coordinator.tracking.events import DeviceReported, RoundCommitted, RunEnded
from coordinator.tracking.tracker import Tracker
from tests.coordinator.tracking import site


class Remembers(Tracker):
    """Keeps what it hears; waits for ``gate``, fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(site.place(folder))
        self.gate = threading.Event()
        self.gate.set()
        self.heard: list[str] = []
        self.fails_at: set[int] = set()
        self.is_closed = False

    def device_reported(self, event: DeviceReported) -> None:
        self.gate.wait(10)
        self.heard.append(event.device)

    def round_committed(self, event: RoundCommitted) -> None:
        if event.step in self.fails_at:
            raise ConnectionError("the server is away")
        self.heard.append(f"round {event.step}")

    def run_ended(self, event: RunEnded) -> None:
        self.heard.append(event.outcome)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def said() -> list[str]:
    return []


def delivery(tracker: Tracker, said: list[str], most: int = 100, rounds: list[int] | None = None) -> Delivery:
    has = rounds.append if rounds is not None else lambda count: None
    return Delivery("test", tracker, most=most, has_rounds=has, say=said.append)


def test_events_arrive_in_order_and_the_tracker_is_closed(tmp_path: Path, said: list[str]) -> None:
    tracker, rounds = Remembers(tmp_path), list[int]()
    to = delivery(tracker, said, rounds=rounds)
    for event in (site.reported("a"), site.committed(1), site.committed(2)):
        to.put(event)
    to.close(5.0, site.ended())
    assert tracker.heard == ["a", "round 1", "round 2", "finished"]
    assert tracker.is_closed
    assert rounds == [1, 2]
    assert said == []


def test_a_slow_tracker_is_not_waited_for_and_what_it_missed_is_counted(tmp_path: Path, said: list[str]) -> None:
    tracker = Remembers(tmp_path)
    tracker.gate.clear()
    to = delivery(tracker, said, most=10)
    began = time.monotonic()
    for number in range(1000):
        to.put(site.reported(f"device-{number}"))
    assert time.monotonic() - began < 1.0
    assert to.dropped in (989, 990)  # one may be with the tracker already
    assert said == ["tracking: test is too slow, events are dropped; the run goes on"]
    tracker.gate.set()
    to.close(5.0)
    assert len(tracker.heard) == 1000 - to.dropped


def test_a_failing_tracker_is_told_of_once_and_misses_those_events_only(tmp_path: Path, said: list[str]) -> None:
    tracker, rounds = Remembers(tmp_path), list[int]()
    tracker.fails_at = {1, 2}
    to = delivery(tracker, said, rounds=rounds)
    for step in (1, 2, 3):
        to.put(site.committed(step))
    to.close(5.0)
    assert tracker.heard == ["round 3"]
    assert to.dropped == 2
    assert said == [
        "tracking: test fails (the server is away); the run goes on without it",
        "tracking: test has missed 2 events",
    ]
    assert rounds == [3]


def test_the_end_of_a_run_waits_no_longer_than_it_is_told(tmp_path: Path, said: list[str]) -> None:
    tracker = Remembers(tmp_path)
    tracker.gate.clear()
    to = delivery(tracker, said)
    to.put(site.reported())
    began = time.monotonic()
    to.close(0.2, site.ended())
    assert 0.1 < time.monotonic() - began < 1.0
    assert said == ["tracking: test has not taken 2 events within 0.2 s; they are left out"]
    tracker.gate.set()
