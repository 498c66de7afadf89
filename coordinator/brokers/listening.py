"""A port that was free when it was chosen may be another process's when a broker binds it: then another one is chosen.

Only before anybody was told of it. A broker that is started again keeps its port, where its devices look for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from edge.contracts.errors import BrokerUnreachable

Started = TypeVar("Started")

MOST_TRIES = 5
"""Ports in all, the first one included."""

_IN_USE = re.compile(r"address (?:is )?already in use", re.IGNORECASE)
_LISTENING = "0A"
"""The state of a socket in ``/proc/net/tcp`` that waits for connections."""


class PortTaken(BrokerUnreachable):
    """Another process had a broker's port first."""


def on_free_ports(start: Callable[[], Started], choose: Callable[[], None]) -> Started:
    """What ``start`` gives; each time that it finds its port taken, ``choose`` is called for another one.

    Raises:
        PortTaken: so were :data:`MOST_TRIES` in a row.
    """
    for _ in range(MOST_TRIES - 1):
        try:
            return start()
        except PortTaken:
            choose()
    return start()


def tells_of_taken_port(log: str) -> bool:
    """Whether a broker wrote that it could not bind its address (Mosquitto and amqtt, in their own words)."""
    return _IN_USE.search(log) is not None


def listens(pid: int, ports: Collection[int], *, proc: Path = Path("/proc")) -> bool:
    """Whether process ``pid`` itself waits for connections at ``ports``; true where the system does not tell.

    A connection alone does not say so: it may be another process that answers, while ours is about to find that out.
    """
    try:
        own = {_place(descriptor) for descriptor in (proc / str(pid) / "fd").iterdir()}
        rows = [row for name in ("tcp", "tcp6") for row in _rows(proc / str(pid) / "net" / name)]
    except OSError:
        return True
    # Columns: number, local address, remote address, state, ..., inode as the tenth.
    held = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENING and f"socket:[{row[9]}]" in own}
    return held.issuperset(ports)


def _place(descriptor: Path) -> str:
    """What a descriptor is of: ``socket:[12345]``; empty where it was closed meanwhile."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def _rows(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text(encoding="ascii").splitlines()[1:]] if path.exists() else []
