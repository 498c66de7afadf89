"""One device floods a coordinator: it is dropped and named, nothing of it is kept, the others keep their pace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.messaging.event_queue import EventQueue
from coordinator.messaging.message_loop import MessageLoop
from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.messages import Accept, Get, Heartbeat
from edge.serving.budgets import CONTROL, ERRORS, Budgets
from edge.transport.base import Received
from tests.coordinator.messaging.inbox_bench import FEDERATION, hello
from tests.coordinator.messaging.inbox_bench import MessageLoop as Bench

MOST_DELAY_S = 1.0
"""For a message beside a flood of 20,000; without turns and budgets all of them go first: 6 to 52 s on two cores."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        bench = Bench(tmp_path, ledger)
        yield bench
        bench.publisher.close()


def flood(kind: str, count: int) -> list[Received]:
    """Different messages of pi-1, each of which would be answered."""
    topic = topics.up(FEDERATION, "pi-1", kind)
    if kind == "hello":
        return [Received(topic, seal(kind, hello("pi-1")))] * count
    if kind == "accept":
        return [Received(topic, seal(kind, Accept(f"{number:064x}"))) for number in range(count)]
    if kind == "get":
        return [Received(topic, seal(kind, Get(f"{number:064x}", "raw", 0, 1))) for number in range(count)]
    return [Received(topic, b"\xc1" * 2000)] * count


@pytest.mark.parametrize("kind", ["hello", "accept", "get", "nonsense"])
def test_flood_of_one_device_delays_nobody_and_is_answered_little(bench: Bench, kind: str) -> None:
    budgets = Budgets()
    bench.publisher.budgets = budgets
    events = EventQueue(budgets)
    messages = flood(kind, 20_000)
    beside = Received(topics.up(FEDERATION, "pi-2", "accept"), seal("accept", Accept("f" * 64)))
    with MessageLoop(bench.inbox, events):
        for event in messages[:10_000]:
            events.put(event)
        asked_at = time.monotonic()
        events.put(beside)
        for event in messages[10_000:]:
            events.put(event)
        while not any(device == "pi-2" for device, _, _ in bench.sent):
            assert time.monotonic() - asked_at < MOST_DELAY_S
            time.sleep(0.001)
        while events._waiting._lanes[0]:
            time.sleep(0.001)
    assert sum("dropped unread" in line for line in bench.said) == 1
    # Whoever carried the messages may have said them: the device is not accused.
    assert not [entry for entry in bench.ledger.audit_log.entries() if entry.action == "device-named"]
    (told,) = [entry for entry in bench.ledger.audit_log.entries() if entry.action == "traffic-dropped"]
    assert (told.subject, told.values()["what"]) == ("device:pi-1", "over-budget")
    answers = [sent for sent in bench.sent if sent[0] == "pi-1"]
    assert len(answers) <= CONTROL.at_once + 200
    assert sum(name == "error" for _, name, _ in answers) <= ERRORS.at_once + 10
    assert len(bench.said) <= ERRORS.at_once + 10


def test_surplus_costs_little_and_waits_nowhere(bench: Bench) -> None:
    """A look into a dictionary: under 50 microseconds where a message that is used takes some hundreds."""
    events = EventQueue(Budgets())
    event = Received(topics.up(FEDERATION, "pi-1", "heartbeat"), seal("heartbeat", Heartbeat(state="idle")))
    for _ in range(1000):
        events.put(event)
    began = time.process_time()
    for _ in range(20_000):
        events.put(event)
    assert (time.process_time() - began) / 20_000 < 50e-6
    assert len(events._waiting._lanes[0]["pi-1"]) <= CONTROL.at_once + 100
