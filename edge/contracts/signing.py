"""What exactly is signed. Ed25519 (RFC 8032), detached, 64 bytes; which keys are trusted is the device's decision.

A manifest is signed as it is: its exact bytes. An order is signed as :data:`ORDER_CONTEXT` followed by the exact
msgpack bytes of its body, so that neither signature can be shown as one of the other kind.
"""

from __future__ import annotations

SIGNATURE_BYTES = 64
ORDER_CONTEXT = b"apportion.order/1\n"


def order_message(body: bytes) -> bytes:
    """The bytes that are signed for an order whose body, as it travels, is ``body``."""
    return ORDER_CONTEXT + body
