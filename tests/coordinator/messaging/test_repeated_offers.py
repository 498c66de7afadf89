"""Offers that wait for a place are repeated every few seconds by thousands: that costs no look at what was ordered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from edge.contracts.messages import Offer
from edge.serving.admission import Admission
from tests.coordinator.messaging.inbox_bench import FEDERATION, UPDATE, MessageLoop, ref_of


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        ledger.nonce = ""
        bench = MessageLoop(tmp_path, ledger)
        yield bench
        bench.publisher.close()


def test_offer_that_waits_is_looked_up_once_and_granted_when_there_is_a_place(handler: MessageLoop) -> None:
    uploads = handler.inbox.uploads
    uploads._admission = Admission(1)
    looked: list[str] = []
    own = uploads._book.own
    uploads._book.own = lambda device, identity: (looked.append(device), own(device, identity))[1]  # type: ignore[method-assign]
    ref = ref_of(UPDATE)
    second = handler.orders["pi-2"].assignment_id
    assert [kind for kind, _ in handler.gets("pi-1", "offer", Offer(handler.id(), ref))] == ["grant"]
    for _ in range(5):
        assert handler.gets("pi-2", "offer", Offer(second, ref)) == []
    assert looked == ["pi-1", "pi-2"]
    other = ref_of(UPDATE[:-1] + b"x")
    assert handler.gets("pi-2", "offer", Offer(second, other)) == []  # other bytes than before are looked at
    assert looked == ["pi-1", "pi-2", "pi-2"]
    uploads._admission.leave(handler.id())
    assert [kind for kind, _ in handler.gets("pi-2", "offer", Offer(second, other))] == ["grant"]
    assert looked == ["pi-1", "pi-2", "pi-2", "pi-2"]
