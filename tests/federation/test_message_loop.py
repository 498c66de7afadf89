"""The thread between broker and inbox: in order, and not ended by a message that shows a bug of ours."""

from __future__ import annotations

import logging
import queue
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from coordinator.messaging.cohort import Cohort
from coordinator.messaging.inbox import Inbox
from coordinator.messaging.message_loop import MessageLoop
from coordinator.rounds.round_clock import RoundClock
from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.errors import LedgerError
from edge.contracts.messages import Bye
from edge.serving.publisher import Publisher
from edge.transport.base import Connected, Event, Received
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport


def test_desk_goes_on_after_a_message_that_breaks_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    transport = InMemoryTransport(InMemoryBroker(), subscriptions=())
    transport.start(lambda event: None)
    handled: list[str] = []
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        inbox = Inbox(
            "fed",
            ledger=ledger,
            blobs=BlobStore(tmp_path / "blobs"),
            cohort=Cohort(),
            publisher=Publisher("fed", BlobStore(tmp_path / "blobs"), transport),
            remaining_s=lambda: 0.0,
            say=handled.append,
        )

        def break_once(device: str, envelope: object) -> None:
            raise ZeroDivisionError(device)

        inbox._handlers["bye"] = break_once
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        with caplog.at_level(logging.ERROR), MessageLoop(inbox, events):
            events.put(Connected())
            events.put(Received(topics.up("fed", "pi-1", "bye"), seal("bye", Bye("gone"))))
            events.put(Received(topics.up("fed", "pi-1", "dance"), seal("dance", {})))
    assert handled == ["pi-1: message kind 'dance' is unknown here and was ignored"]
    (record,) = caplog.records
    assert "apportion/v1/fed/up/pi-1/bye was not handled" in record.getMessage()
    assert record.exc_info is not None


def test_a_full_disk_under_the_accepts_is_told_and_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    class FullInbox:
        """An inbox whose accepts fit once more at the second try."""

        accepts_together = 1
        tries = 0

        def connected(self) -> None:
            """Nothing to say."""

        def settle(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise LedgerError("ledger.sqlite: not written (database or disk is full); nothing changed")

    inbox, events = FullInbox(), queue.SimpleQueue[Event | None]()
    with caplog.at_level(logging.WARNING), MessageLoop(inbox, events):  # type: ignore[arg-type]
        events.put(Connected())
    assert inbox.tries >= 1
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "database or disk is full" in caplog.text
    assert "report" not in caplog.text


def test_round_clock_never_goes_below_zero() -> None:
    clock = RoundClock()
    assert clock.remaining_s() == 0.0
    clock.start(100.0)
    assert 99.0 < clock.remaining_s() <= 100.0
    clock.start(-1.0)
    assert clock.remaining_s() == 0.0
