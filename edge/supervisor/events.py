"""What an agent takes from its queue: news of its transport, of its trainer, and the wish that it ends."""

from __future__ import annotations

from dataclasses import dataclass

from edge.supervisor.trainer_link import TrainerEvent
from edge.transport.base import Event


@dataclass(frozen=True)
class Stop:
    """Asks the agent to say goodbye and end."""

    reason: str


AgentEvent = Event | TrainerEvent | Stop
