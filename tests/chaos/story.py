"""What happened in a run, as the harness saw it, and the processes that are in it."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.faults import Fault


@dataclass
class Story:
    """What happened in a run.

    Attributes:
        injected: faults that were carried out, in order.
        acknowledged: assignment ids that the coordinator acknowledged as accepted, with the number of times.
        stops: how coordinators ended that were not killed here: exit status and their last words.
        resumes: coordinators started for a run that was there already.
        heard: by a liar and the number of a coordinator's start, its messages that reached that process, blocks and
            requests for them apart.
        finished_in: the directory of the coordinator that ended the run.
        trouble: what may not happen: a hang, a traceback, a process that ended with a bug.
    """

    injected: list[Fault] = field(default_factory=list)
    acknowledged: Counter[str] = field(default_factory=Counter)
    seen_recorded: dict[str, str] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    resumes: int = 0
    trouble: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    lost_between: list[str] = field(default_factory=list)
    heard: Counter[tuple[str, int]] = field(default_factory=Counter)
    finished_in: Path = Path()


@dataclass
class Child:
    """A running process of a party; ``killed`` when its end is our doing."""

    party: str
    pid: int
    control: socket.socket
    killed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
