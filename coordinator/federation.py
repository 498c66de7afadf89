"""One running federation: its parts, and the thread that answers devices while rounds compute.

Putting the parts together from a configuration is :mod:`coordinator.cli`'s; what happens in which order is
:mod:`coordinator.round`'s.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coordinator.artifacts import Artifacts
from coordinator.blob_store import BlobStore
from coordinator.cohort import Cohort
from coordinator.configuration import RunConfig
from coordinator.evaluation import Score
from coordinator.inbox import Inbox
from coordinator.ledger import Ledger
from coordinator.methods.method import Method, State
from coordinator.progress import Progress
from coordinator.publisher import Publisher
from edge.transport.base import Connected, Event, Received

log = logging.getLogger("apportion.coordinator")


class RoundClock:
    """Seconds left in the open round, on the monotonic clock; read by the inbox, set by the round."""

    def __init__(self) -> None:
        self._end = 0.0

    def start(self, remaining_s: float) -> None:
        """The round ends ``remaining_s`` from now."""
        self._end = time.monotonic() + remaining_s

    def remaining_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())


@dataclass(frozen=True)
class Federation:
    """Everything a round needs.

    Attributes:
        evaluate: scores of every model the method evaluates, by label.
        on_point: called with the name of each point of a round as it is passed; tests stop the process there.
    """

    name: str
    config: RunConfig
    method: Method
    artifacts: Artifacts
    ledger: Ledger
    blobs: BlobStore
    cohort: Cohort
    publisher: Publisher
    inbox: Inbox
    clock: RoundClock
    progress: Progress
    evaluate: Callable[[State], dict[str, Score]]
    on_point: Callable[[str], None] = field(default=lambda point: None)


class Desk:
    """The thread that hands messages from the broker to the inbox, one at a time, in order of arrival."""

    def __init__(self, inbox: Inbox, events: queue.SimpleQueue[Event | None]) -> None:
        self._inbox = inbox
        self._events = events
        self._thread = threading.Thread(target=self._serve, name="desk", daemon=True)

    def __enter__(self) -> Desk:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._events.put(None)
        self._thread.join(10.0)

    def _serve(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                if isinstance(event, Received):
                    self._inbox.handle(event.topic, event.payload)
                elif isinstance(event, Connected):
                    self._inbox.connected()
            except Exception:
                # A bug of ours. No message of one device may end the federation for the others.
                log.exception("message %s was not handled; please report this", getattr(event, "topic", event))
