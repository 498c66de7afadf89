"""From a seed to the faults of its run: the same seed gives the same schedule on every machine.

Every draw is from a stream keyed by (seed, purpose, index), as everywhere in this project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from edge.contracts.streams import splitmix64, stream_seed
from tests.chaos.faults import BLOBS, BROKER, COORDINATOR, DATABASE, DURABLE_WRITE, Event, Fault
from tests.chaos.liars.kinds import KINDS, Liar, liars_of

DEVICES = 4
ROUNDS = {"synchronous": 3, "buffered": 4}
"""Versions are made of fewer updates than rounds: about as many updates in all."""

Mode = Literal["synchronous", "buffered"]
MIN_REPORTS: dict[Mode, int] = {"synchronous": DEVICES, "buffered": DEVICES - 1}
"""Buffered versions are made of fewer updates than there are devices, so that some are late."""

BrokerKind = Literal["mosquitto", "embedded"]

LEASE_S = 3.0
"""Of coordinators that take turns."""

T = TypeVar("T")


@dataclass(frozen=True)
class Schedule:
    """What is done to the run of ``seed``.

    Attributes:
        keeps_queue: whether the broker has its queue on disk (Mosquitto only).
        liars: the Byzantine members.
        on_server: whether the ledger is on a PostgreSQL server and a second coordinator waits for the lease.
    """

    seed: int
    mode: Mode
    broker: BrokerKind
    keeps_queue: bool
    faults: tuple[Fault, ...]
    liars: tuple[Liar, ...] = ()
    on_server: bool = False

    @property
    def is_signed(self) -> bool:
        """Whether the coordinator signs its orders, and devices follow no others."""
        return any(KINDS[liar.kind].is_signed for liar in self.liars)

    def text(self) -> str:
        """For people and for the folder of a failing seed."""
        kept = ", queue kept" if self.keeps_queue else ""
        kept += ", PostgreSQL and two coordinators" if self.on_server else ""
        head = f"seed {self.seed}: {self.mode}, {self.broker} broker{kept}"
        return "\n".join([head, *(f"  {entry}" for entry in (*self.liars, *self.faults))]) + "\n"


class Draw:
    """The stream of one purpose; each call takes the next value of it."""

    def __init__(self, seed: int, purpose: str, index: int = 0) -> None:
        self._values = iter(splitmix64(stream_seed(seed, f"chaos/{purpose}", index), 64).tolist())

    def below(self, count: int) -> int:
        """An integer from 0 to ``count - 1``."""
        return int(next(self._values)) % count

    def of(self, choices: Sequence[T]) -> T:
        """One of ``choices``."""
        return choices[self.below(len(choices))]

    def between(self, low: float, high: float) -> float:
        """A number with one digit behind the point."""
        return round(low + (high - low) * self.below(1001) / 1000, 1)


def undisturbed(mode: Mode, broker: BrokerKind = "mosquitto") -> Schedule:
    """No fault at all."""
    return Schedule(0, mode, broker, False, ())


def schedule(
    seed: int, *, has_mosquitto: bool = True, has_buffered: bool = True, has_postgres: bool = True
) -> Schedule:
    """The schedule of ``seed``: its liars, and three to seven faults, most often with a kill of the
    coordinator among them.

    Args:
        has_mosquitto, has_buffered, has_postgres: what this machine and this release have; without, the other kind is
            taken.
    """
    draw = Draw(seed, "run")
    mode: Mode = "buffered" if draw.below(5) == 0 and has_buffered else "synchronous"
    broker: BrokerKind = "embedded" if draw.below(10) == 0 or not has_mosquitto else "mosquitto"
    keeps_queue = draw.below(2) == 0 and broker == "mosquitto"
    faults: list[Fault] = []
    for index in range(3 + draw.below(5)):
        dice = Draw(seed, "fault", index)
        if index == 0 and dice.below(10) < 8:
            fault = _kill_coordinator(dice, mode)
        else:
            fault = _pick(dice, _WEIGHTS)(dice, mode)
        if fault.action == "kill" and fault.target == BROKER and keeps_queue and dice.below(2):
            fault = replace(fault, action="kill-losing")
        if sum(f.kind == fault.kind for f in faults) < _MOST.get(fault.kind, 2):
            faults.append(fault)
    on_server = Draw(seed, "server").below(10) == 0 and has_postgres
    if on_server:
        faults = _with_takeovers(seed, faults)
    liars = liars_of(seed, Draw(seed, "liar").below(1000))
    return Schedule(seed, mode, broker, keeps_queue, tuple(faults), liars, on_server)


def _with_takeovers(seed: int, faults: Sequence[Fault]) -> list[Fault]:
    """Two of the faults that several coordinators and a server have, and those of ``faults`` that they can have.

    Blobs are the run's directory's no more, so nothing is flipped there; where points are passed twice, whoever leads
    passes them.
    """
    kept = [fault for fault in faults if fault.action not in ("flip", "clock") or fault.target != COORDINATOR]
    for index in range(2):
        dice = Draw(seed, "takeover", index)
        action, target = dice.of((("depose", COORDINATOR), ("outlast", COORDINATOR), ("restart", DATABASE)))
        value = {
            "depose": LEASE_S + 1.5,
            "outlast": LEASE_S + dice.between(0.5, 2.0),
            "restart": dice.between(0.0, 1.0),
        }[action]
        kept.insert(0, Fault(_point(dice, "synchronous"), action, target, value))
    return kept


# A trainer's second crash is the device's refusal, and a second flip or full disk waits for the same mending.
_MOST = {"kill-trainer device": 1, "fill coordinator": 1, "fill device": 1, "flip coordinator": 1}

# How often each point is passed by an undisturbed run of four devices and three rounds: nth is drawn from 1 to this.
_POINTS = {
    "before-plan": 3, "planned": 3, "published": 3, "collecting": 8, "mid-upload": 20, "blob-stored": 12,
    "recorded": 12, "acknowledged": 12, "aggregating": 3, "aggregated": 3, "before-commit": 3, "committed": 3,
    "releasing": 3, "released": 2,
}  # fmt: skip

_DURABLE_WRITES = 120
"""Files synced and transactions of an undisturbed run, about."""

_BUFFERED_POINTS = {"before-orders": 3, "ordered": 3}

_MOVES = {"order": 3, "fetched": 3, "begin": 3, "trained": 3, "acked": 2}

_UP = {"hello": 1, "accept": 3, "get": 6, "offer": 3, "put": 6, "report": 3}
_DOWN = {"order": 3, "block": 6, "grant": 6, "ack": 3}
_BULK = ("put", "block")
_TAMPERING = ("cut-inside", "delay", "drop", "duplicate", "duplicate", "reorder", "corrupt", "garble")


def _pick(draw: Draw, weighted: Sequence[tuple[int, T]]) -> T:
    at = draw.below(sum(weight for weight, _ in weighted))
    for weight, choice in weighted:
        if at < weight:
            return choice
        at -= weight
    raise AssertionError("weights do not add up")


def _point(draw: Draw, mode: Mode) -> Event:
    """A point of the coordinator."""
    points = _POINTS | (_BUFFERED_POINTS if mode == "buffered" else {})
    name = draw.of(sorted(points))
    nth = 1 + draw.below(points[name])
    stem = f"{name}-{draw.below(MIN_REPORTS[mode])}" if name == "aggregated" else name
    return Event(f"{COORDINATOR}@{stem}", nth)


def _device(draw: Draw) -> str:
    return f"device-{draw.below(DEVICES):02d}"


def _move(draw: Draw, device: str) -> Event:
    """A move of a device."""
    name = draw.of(sorted(_MOVES))
    return Event(f"{device}@{name}", 1 + draw.below(_MOVES[name]))


def _message(draw: Draw, party: str, *, only: Sequence[str] = ()) -> Event:
    """A message on the link of ``party``; the coordinator's link carries those of all devices."""
    kinds = [(">", k, n) for k, n in sorted(_UP.items())] + [("<", k, n) for k, n in sorted(_DOWN.items())]
    sign, kind, most = draw.of([entry for entry in kinds if not only or entry[1] in only])
    if party == COORDINATOR:
        sign, most = "<" if sign == ">" else ">", most * DEVICES
    return Event(f"{party}{sign}{kind}", 1 + draw.below(most))


def _end(draw: Draw) -> str:
    """The coordinator or a device."""
    return COORDINATOR if draw.below(3) == 0 else _device(draw)


def _anywhere(draw: Draw, target: str, mode: Mode) -> Event:
    return _point(draw, mode) if target in (COORDINATOR, BROKER) else _move(draw, target)


def _kill_coordinator(draw: Draw, mode: Mode) -> Fault:
    return Fault(_point(draw, mode), "kill", COORDINATOR, draw.between(0.0, 0.5))


def _kill_broker(draw: Draw, mode: Mode) -> Fault:
    return Fault(_point(draw, mode), "kill", BROKER, draw.between(0.0, 0.8))


def _kill_device(draw: Draw, mode: Mode) -> Fault:
    device = _device(draw)
    return Fault(_move(draw, device), "kill", device, draw.between(0.0, 0.5))


def _kill_trainer(draw: Draw, mode: Mode) -> Fault:
    device = _device(draw)
    return Fault(Event(f"{device}@begin", 1 + draw.below(3)), "kill-trainer", device)


def _pause(draw: Draw, mode: Mode) -> Fault:
    target = draw.of((COORDINATOR, BROKER, _device(draw)))
    return Fault(_anywhere(draw, target, mode), "pause", target, draw.between(0.3, 1.5))


def _cut(draw: Draw, mode: Mode) -> Fault:
    target = _end(draw)
    return Fault(_anywhere(draw, target, mode), "cut", target, draw.between(0.0, 1.0))


def _partition(draw: Draw, mode: Mode) -> Fault:
    target = _end(draw)
    action = draw.of(("partition", "partition-up", "partition-down"))
    return Fault(_anywhere(draw, target, mode), action, target, draw.between(0.3, 1.5))


def _tamper(draw: Draw, mode: Mode) -> Fault:
    target, action = _end(draw), draw.of(_TAMPERING)
    at = _message(draw, target, only=_BULK if action == "corrupt" else ())
    return Fault(at, action, target, draw.between(0.3, 1.5) if action == "delay" else 0.0)


def _fill(draw: Draw, mode: Mode) -> Fault:
    target = COORDINATOR if draw.below(4) else _device(draw)
    if target == COORDINATOR and draw.below(2):
        nth = 1 + draw.below(_DURABLE_WRITES)
        return Fault(Event(f"{COORDINATOR}@{DURABLE_WRITE}", nth), "fill", target)
    return Fault(_anywhere(draw, target, mode), "fill", target, float(draw.of((0, 0, 4096, 65_536))))


def _flip(draw: Draw, mode: Mode) -> Fault:
    return Fault(_point(draw, mode), "flip", COORDINATOR, float(draw.below(len(BLOBS))))


def _clock(draw: Draw, mode: Mode) -> Fault:
    target = _end(draw)
    return Fault(_anywhere(draw, target, mode), "clock", target, draw.of((-26, -3, 3, 26)) * 3600.0)


_WEIGHTS: tuple[tuple[int, Callable[[Draw, Mode], Fault]], ...] = (
    (14, _kill_coordinator),
    (9, _kill_broker),
    (14, _kill_device),
    (4, _kill_trainer),
    (7, _pause),
    (7, _cut),
    (7, _partition),
    (20, _tamper),
    (8, _fill),
    (4, _flip),
    (6, _clock),
)
