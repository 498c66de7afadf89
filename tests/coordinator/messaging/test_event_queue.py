"""Messages that wait for the handler: blocks of uploads behind everything else, each kind in order of arrival."""

from __future__ import annotations

import queue
import threading

import pytest

from coordinator.messaging.event_queue import EventQueue
from edge.contracts import topics
from edge.transport.base import Connected, Received


def message(kind: str, number: int) -> Received:
    return Received(topics.up("fed", "pi-1", kind), bytes([number]))


def test_blocks_wait_for_all_others_and_keep_their_order() -> None:
    events = EventQueue()
    arrived = [message("put", 1), message("hello", 2), message("put", 3), Connected(), message("accept", 4)]
    for event in arrived:
        events.put(event)
    assert [events.get() for _ in arrived] == [arrived[1], arrived[3], arrived[4], arrived[0], arrived[2]]
    with pytest.raises(queue.Empty):
        events.get_nowait()


def test_report_stays_behind_the_blocks_of_its_own_device() -> None:
    events = EventQueue()
    other = Received(topics.up("fed", "pi-2", "report"), b"")
    block, report, later = message("put", 1), message("report", 2), message("report", 3)
    for event in (block, report, other):
        events.put(event)
    assert [events.get() for _ in range(3)] == [other, block, report]
    for event in (message("put", 4), later, message("hello", 5)):
        events.put(event)
    assert [events.get() for _ in range(3)] == [message("hello", 5), message("put", 4), later]
    for event in (later, message("hello", 5)):
        events.put(event)
    assert events.get() == later


def test_offer_stays_behind_the_blocks_that_came_before_a_broken_connection() -> None:
    events = EventQueue()
    before, offer, hello = message("put", 1), message("offer", 2), message("hello", 3)
    for event in (before, offer, hello):
        events.put(event)
    assert [events.get() for _ in range(3)] == [hello, before, offer]
    for event in (offer, hello):
        events.put(event)
    assert events.get() == offer


def test_nothing_is_lost_between_threads() -> None:
    events, taken = EventQueue(), []

    def put(kind: str) -> None:
        for number in range(200):
            events.put(message(kind, number))

    threads = [threading.Thread(target=put, args=(kind,)) for kind in ("put", "accept", "offer", "put")]
    for thread in threads:
        thread.start()
    for _ in range(800):
        taken.append(events.get())
    for thread in threads:
        thread.join()
    for kind, times in (("put", 2), ("accept", 1), ("offer", 1)):
        numbers = [event.payload[0] for event in taken if event.topic.endswith(f"/{kind}")]
        assert sorted(numbers) == sorted([*range(200)] * times)
    accepted = [event.payload[0] for event in taken if event.topic.endswith("/accept")]
    assert accepted == list(range(200))
