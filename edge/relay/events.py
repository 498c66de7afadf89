"""What a relay takes from its queue besides the wish that it ends: news of one of its two connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge.transport.base import Event


@dataclass(frozen=True)
class FromSide:
    """``above`` is the coordinator's broker, ``site`` the devices'."""

    side: Literal["above", "site"]
    event: Event
