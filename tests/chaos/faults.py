"""What can be done to a run, and when: a fault is an action that is carried out at the n-th passing of an event.

Events are points that processes pass and messages that travel. They are written as they are counted:

- ``coordinator@recorded``: a point of :data:`coordinator.rounds.crash_points.POINTS`, the coordinator waiting at it;
- ``coordinator@durable-write``: it has synced a file or ended a transaction, whatever is the next it writes;
- ``device-01@trained``: a move of an agent's state machine (:mod:`edge.supervisor.states`), the agent waiting at it;
- ``device-01>offer``, ``device-01<ack``, ``coordinator<report``: a message that a party sends, or is sent, on its link.

The same event with the same number is the same moment of the protocol in every run, whatever the machine's speed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coordinator.rounds.crash_points import point_of
from edge.contracts.messages import BODIES
from edge.supervisor.states import TABLE

COORDINATOR = "coordinator"
BROKER = "broker"
DATABASE = "database"
FSCK = "fsck"

DURABLE_WRITE = "durable-write"
"""A point beside those of the product: the coordinator has synced a file or ended a transaction."""

MOVES = frozenset(move for _, move in TABLE)
"""Names of an agent's points."""

_EVENT = re.compile(r"(?P<party>coordinator|device-\d\d)(?P<sign>[@<>])(?P<name>[a-z0-9-]+)")


@dataclass(frozen=True)
class Action:
    """One way to disturb a run.

    Attributes:
        of: ``process``, ``link``, ``message``, ``disk``, ``blob`` or ``clock``.
        what: for people.
        targets: parties it can be aimed at: ``coordinator``, ``broker``, ``device``, ``database``.
    """

    name: str
    of: str
    what: str
    targets: tuple[str, ...]


BLOBS = ("weights", "update", "model", "artifact")
"""What ``flip`` damages: the newest blob of this sort, its number being the fault's value."""

_ALL = (COORDINATOR, BROKER, "device")
_ENDS = (COORDINATOR, "device")

ACTIONS = {
    action.name: action
    for action in (
        Action("kill", "process", "SIGKILL, started again after `value` seconds", _ALL),
        Action("kill-losing", "process", "SIGKILL of a broker whose queue is not kept", (BROKER,)),
        Action("kill-trainer", "process", "SIGKILL of a device's trainer alone", ("device",)),
        Action("pause", "process", "SIGSTOP for `value` seconds", _ALL),
        Action(
            "depose",
            "process",
            "SIGKILL of who leads; started again `value` s later, when another one does",
            (COORDINATOR,),
        ),
        Action("outlast", "process", "SIGSTOP of who leads for `value` seconds, longer than its lease", (COORDINATOR,)),
        Action("restart", "process", "ended at once as by a power cut, started again after `value` s", (DATABASE,)),
        Action("cut", "link", "the connection is reset, new ones are refused for `value` seconds", _ENDS),
        Action("partition", "link", "nothing passes either way for `value` seconds", _ENDS),
        Action("partition-up", "link", "nothing passes from the party for `value` seconds", _ENDS),
        Action("partition-down", "link", "nothing passes to the party for `value` seconds", _ENDS),
        Action("cut-inside", "message", "half of this message passes, then the connection is reset", _ENDS),
        Action("delay", "message", "this message and what follows it come `value` seconds later", _ENDS),
        Action("drop", "message", "this message is lost; at QoS 1 its sender is told that it arrived", _ENDS),
        Action("duplicate", "message", "this message arrives twice", _ENDS),
        Action("reorder", "message", "this message arrives after the next one", _ENDS),
        Action("corrupt", "message", "one byte of the bulk data in this message is another", _ENDS),
        Action("garble", "message", "this message cannot be read", _ENDS),
        Action("fill", "disk", "the disk is full but for `value` bytes, and freed later", _ENDS),
        Action("flip", "blob", "a byte of the newest stored blob of sort `value` is another", (COORDINATOR,)),
        Action("clock", "clock", "the wall clock jumps by `value` seconds", _ENDS),
    )
}


@dataclass(frozen=True)
class Event:
    """The ``nth`` passing (from 1) of what ``name`` says."""

    name: str
    nth: int

    def __post_init__(self) -> None:
        check_event(self.name)
        if self.nth < 1:
            raise ValueError(f"{self.name} #{self.nth}: passings are counted from 1")

    def __str__(self) -> str:
        return f"{self.name} #{self.nth}"


@dataclass(frozen=True)
class Fault:
    """``action`` is done to ``target`` at ``at``; what ``value`` is, the action says."""

    at: Event
    action: str
    target: str
    value: float = 0.0

    def __post_init__(self) -> None:
        action = ACTIONS.get(self.action)
        if action is None:
            raise ValueError(f"'{self.action}' is no action; one of {', '.join(ACTIONS)}")
        kind = "device" if self.target.startswith("device-") else self.target
        if kind not in action.targets:
            raise ValueError(f"{self.action} is not for {self.target}; for {', '.join(action.targets)}")
        if action.of == "message" and not self.at.name.startswith((f"{self.target}>", f"{self.target}<")):
            raise ValueError(f"{self.action} is done to a message on the link of {self.target}, not at {self.at}")

    @property
    def kind(self) -> str:
        """Action and target's kind, as the table names them: ``kill device``."""
        return f"{self.action} {'device' if self.target.startswith('device-') else self.target}"

    def __str__(self) -> str:
        return f"{self.action} {self.target} ({self.value:g}) at {self.at}"


def check_event(name: str) -> str:
    """``name`` itself, when it is an event that can happen.

    Raises:
        ValueError: no such party, point, move or message kind; the message lists them.
    """
    found = _EVENT.fullmatch(name)
    if found is None:
        raise ValueError(f"'{name}' is no event: write PARTY@POINT, PARTY>KIND or PARTY<KIND")
    party, sign, word = found["party"], found["sign"], found["name"]
    if sign != "@":
        if word not in BODIES:
            raise ValueError(f"'{name}': no message kind '{word}'; one of {', '.join(BODIES)}")
    elif party == COORDINATOR:
        if word != DURABLE_WRITE:
            point_of(word)
    elif word not in MOVES:
        raise ValueError(f"'{name}': no move '{word}'; one of {', '.join(sorted(MOVES))}")
    return name
