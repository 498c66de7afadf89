"""A broker that lies: beside what devices and coordinator say it delivers what they never said, or said to others.

What it forges is what the signatures of orders and the rows of the ledger are there to find. It does not speak in a
device's name beyond that: without TLS nothing would hold it from it, and with TLS it is the one that says who speaks.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from edge.contracts import topics
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.messages import Ack, Offer
from edge.contracts.plan import WorkOrder
from edge.contracts.topics import kind_of
from tests.chaos.framing import Packet
from tests.chaos.relay import DOWN, UP, Verdict

MOST = 16
"""Lies of a run about one kind of message: each kind has its turn, however often another one is said again."""

NAMES = ("bad-signature", "belongs to")
"""Words of lines that say that something was not what it was delivered as."""


class LyingBroker:
    """Adds to what passes between parties of ``federation``.

    Args:
        variant: every third broker also tells one device once that its update was taken, which was not.
    """

    def __init__(self, federation: str, devices: list[str], variant: int) -> None:
        self._federation, self._devices = federation, devices
        self._robs = variant % 3 == 0
        self._reports: list[bytes] = []
        self._acks: list[bytes] = []
        self._told: Counter[str] = Counter()

    def lies_beside(self, party: str, direction: str, packet: Packet) -> Verdict:
        """What passes in place of ``packet``: it, and perhaps something behind it or back to its sender."""
        kind = kind_of(packet.topic)
        if self._told[kind] >= MOST:
            return Verdict([packet])
        if kind == "order" and direction == DOWN and party in self._devices:
            return Verdict([packet, *self._orders(party, unseal(packet.payload))])
        if kind == "ack" and direction == DOWN and party in self._devices:
            self._acks.append(packet.payload)
            return Verdict([packet, self._said(packet.topic, self._acks[0])])
        if kind == "report" and direction == DOWN:
            self._reports.append(packet.payload)
            own = packet.topic.split("/")[4]
            other = self._devices[(self._devices.index(own) + 1) % len(self._devices)]
            swapped = self._said(topics.up(self._federation, other, "report"), packet.payload)
            return Verdict([packet, swapped, self._said(packet.topic, self._reports[0])])
        if kind == "offer" and direction == UP and party in self._devices and self._robs:
            self._robs = False
            ack = seal("ack", Ack(unseal(packet.payload).read(Offer).assignment_id, True))
            return Verdict([packet], back=self._said(topics.down(self._federation, party, "ack"), ack))
        return Verdict([packet])

    def _orders(self, device: str, envelope: Envelope) -> list[Packet]:
        order = envelope.read(WorkOrder)
        forged = msgspec.structs.replace(order, hyper={name: 1e3 for name in order.hyper}, data_seed=1)
        topic = topics.down(self._federation, device, "order")
        return [
            self._said(topic, seal("order", forged)),
            self._said(topic, seal("order", forged, sign=lambda body: envelope.signature)),
        ]

    def _said(self, topic: str, payload: bytes) -> Packet:
        self._told[kind_of(topic)] += 1
        name = topic.encode()
        return Packet(0x30, len(name).to_bytes(2, "big") + name + payload)
