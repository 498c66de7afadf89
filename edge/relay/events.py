"""What a relay takes from its queue: news of its two connections, and the wish that it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge.serving.budgets import Budgets
from edge.serving.fair_queue import FairQueue, sender
from edge.supervisor.events import Stop
from edge.transport.base import Event, Received


@dataclass(frozen=True)
class FromSide:
    """``above`` is the coordinator's broker, ``site`` the devices'."""

    side: Literal["above", "site"]
    event: Event


class RelayEvents(FairQueue[FromSide | Stop]):
    """The site's devices take turns, with each other and with the coordinator; what is over a budget is dropped."""

    def __init__(self, budgets: Budgets) -> None:
        super().__init__()
        self._budgets = budgets

    def from_above(self, event: Event) -> None:
        """Add news of the coordinator's broker."""
        self.put("above", FromSide("above", event))

    def from_site(self, event: Event) -> None:
        """Add news of the devices' broker."""
        device = ""
        if isinstance(event, Received):
            device, kind = sender(event.topic)
            if not self._budgets.admits(device, kind, len(event.payload)):
                return
        self.put(f"site/{device}", FromSide("site", event))
