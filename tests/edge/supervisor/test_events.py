"""What waits for an agent's loop is bounded, whatever a broker sends."""

from __future__ import annotations

import queue

import pytest

from edge.supervisor.events import MOST_WAITING_BYTES, AgentEvents, Stop
from edge.transport.base import Connected, Received


def test_broker_that_sends_without_end_takes_no_more_memory_than_stated() -> None:
    events, block = AgentEvents(), Received("t", bytes(300_000))
    for _ in range(1000):
        events.put(block)
    events.put(Connected())
    events.put(Stop("asked"))
    taken = [events.get(0.1) for _ in range(MOST_WAITING_BYTES // 300_000)]
    assert taken == [block] * len(taken)
    assert [events.get(0.1), events.get(0.1)] == [Connected(), Stop("asked")]
    with pytest.raises(queue.Empty):
        events.get(0.01)
    events.put(block)
    assert events.get(0.1) == block
