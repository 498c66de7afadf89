"""Who lies in the run of a seed, and how: kinds in equal shares over seeds, drawn from the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One way to lie.

    Attributes:
        what: for people.
        is_caught: what it says is evidence against it; else it is only silent or late, and its orders expire.
        members: parties of this kind in one run.
        is_signed: runs with it have signed orders.
        is_member: it is a device of the federation; else it sits between the others.
    """

    name: str
    what: str
    is_caught: bool = True
    members: int = 1
    is_signed: bool = False
    is_member: bool = True


KINDS = {
    kind.name: kind
    for kind in (
        Kind("malformed", "garbage and msgpack bombs on every topic, wrong types, an update that is no tensor file"),
        Kind("extreme", "hellos and reports of 2^63, losses of 1.7e308 and inf, updates of NaN, 1e25 or other shapes"),
        Kind("late", "accepts, goes away, and reports when nobody waits for it any more", is_caught=False),
        Kind("doubled", "two updates for one order, two contents for one digest, replays of rounds and of other runs"),
        Kind("flooding", "hellos, requests, profiles, offers under new digests by the hundred", is_caught=False),
        Kind("colluding", "two members with the same crafted update", members=2),
        Kind("relay", "a site whose sum has another weight or form, and that gives others orders", is_signed=True),
        Kind(
            "broker",
            "forges orders, replays, swaps reports, acknowledges what never was",
            is_signed=True,
            is_member=False,
        ),
    )
}
"""By name; a seed's is the one whose turn it is."""


@dataclass(frozen=True)
class Liar:
    """One party that lies.

    Attributes:
        name: its device id.
        kind: of :data:`KINDS`.
        variant: any number; which of the kind's lies are told.
    """

    name: str
    kind: str
    variant: int

    def __str__(self) -> str:
        return f"liar {self.name} ({self.kind}, {self.variant})"


def liars_of(seed: int, draw: int) -> tuple[Liar, ...]:
    """The liars of ``seed``; ``draw`` is a number from the seed's own stream."""
    return members_of(list(KINDS.values())[seed % len(KINDS)], draw)


def devices_among(liars: Sequence[Liar]) -> list[str]:
    """Those that are devices of the federation."""
    return [liar.name for liar in liars if KINDS[liar.kind].is_member]


def told_on(liars: Sequence[Liar]) -> list[str]:
    """Those whose lies are evidence against them."""
    return [liar.name for liar in liars if KINDS[liar.kind].is_member and KINDS[liar.kind].is_caught]


def members_of(kind: Kind, variant: int) -> tuple[Liar, ...]:
    """The parties of one ``kind``."""
    if not kind.is_member:
        return (Liar(kind.name, kind.name, variant),)
    return tuple(Liar(f"liar-{index:02d}", kind.name, variant) for index in range(kind.members))
