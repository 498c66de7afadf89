"""What waits for a relay: its site's devices take turns with each other and with the coordinator."""

from __future__ import annotations

import contextlib
import queue

from edge.contracts import topics
from edge.relay.events import FromSide, RelayEvents
from edge.serving.budgets import CONTROL, Budgets
from edge.supervisor.events import Stop
from edge.transport.base import Connected, Received


def test_flood_of_a_device_delays_neither_an_order_nor_another_device_nor_the_end() -> None:
    named: list[str] = []
    events = RelayEvents(Budgets(lambda device, why: named.append(device)))
    flood = Received(topics.up("site", "pi-1", "accept"), b"x")
    order = Received(topics.down("fed", "relay-1", "order"), b"order")
    report = Received(topics.up("site", "pi-2", "report"), b"report")
    for _ in range(5000):
        events.from_site(flood)
    events.from_above(order)
    events.from_site(report)
    events.put("stop", Stop("asked"))
    taken = [events.get() for _ in range(4)]
    assert taken == [FromSide("site", flood), FromSide("above", order), FromSide("site", report), Stop("asked")]
    kept = 0
    with contextlib.suppress(queue.Empty):
        while events.get_nowait():
            kept += 1
    assert 0 < kept <= CONTROL.at_once + 50
    assert named == ["pi-1"]


def test_connections_are_told() -> None:
    events = RelayEvents(Budgets())
    events.from_site(Connected())
    events.from_above(Connected())
    assert [events.get(), events.get()] == [FromSide("site", Connected()), FromSide("above", Connected())]
