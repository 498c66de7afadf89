"""What an agent takes from its queue: news of its transport, of its trainer, and the wish that it ends."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

from edge.supervisor.trainer_link import TrainerEvent
from edge.transport.base import Event, Received

MOST_WAITING_BYTES = 4 << 20
"""Of messages: some windows of blocks and a few orders. What is over it comes again, or was of no honest broker."""


@dataclass(frozen=True)
class Stop:
    """Asks the agent to say goodbye and end."""

    reason: str


AgentEvent = Event | TrainerEvent | Stop


class AgentEvents:
    """As ``queue.SimpleQueue``: any thread may put, one takes; a signal handler may put what is no message."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[AgentEvent] = queue.SimpleQueue()
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, event: AgentEvent) -> None:
        """Add ``event``, or drop a message that there is no room for; returns at once."""
        if isinstance(event, Received):
            with self._lock:
                if self._bytes + len(event.payload) > MOST_WAITING_BYTES:
                    return
                self._bytes += len(event.payload)
        self._waiting.put(event)

    def get(self, timeout: float) -> AgentEvent:
        """The next event.

        Raises:
            queue.Empty: none came within ``timeout`` seconds.
        """
        event = self._waiting.get(timeout=timeout)
        if isinstance(event, Received):
            with self._lock:
                self._bytes -= len(event.payload)
        return event
