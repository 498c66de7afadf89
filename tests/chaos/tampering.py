"""What passes in place of a message that a fault is aimed at."""

from __future__ import annotations

import asyncio

from edge.contracts.envelope import unseal
from edge.contracts.messages import Block, Put
from edge.contracts.topics import kind_of
from tests.chaos.faults import Fault
from tests.chaos.framing import Packet
from tests.chaos.relay import Verdict

_BULK = {"put": Put, "block": Block}


async def tampered(fault: Fault, packet: Packet) -> Verdict:
    """What ``fault`` makes of ``packet``; a delay passes here."""
    match fault.action:
        case "drop":
            return Verdict([], back=packet.acknowledgement())
        case "duplicate":
            return Verdict([packet, packet.again()])
        case "delay":
            await asyncio.sleep(fault.value)
        case "reorder":
            return Verdict([packet], is_held=True)
        case "cut-inside":
            return Verdict([packet], is_cut=True)
        case "corrupt":
            return Verdict([packet.with_payload(_corrupted(packet))])
        case "garble":
            return Verdict([packet.with_payload(b"\xc1" + packet.payload[1:])])
    return Verdict([packet])


def _corrupted(packet: Packet) -> bytes:
    """The payload with a byte in the middle of its bulk data changed; everything else can be read as before."""
    body = unseal(packet.payload).read(_BULK[kind_of(packet.topic)])
    at = packet.payload.rindex(body.data) + len(body.data) // 2
    changed = bytearray(packet.payload)
    changed[at] ^= 0x40
    return bytes(changed)
