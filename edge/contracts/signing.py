"""What exactly is signed; which keys are trusted is the receiver's decision. Signatures are detached, of 64 bytes.

The coordinator signs with Ed25519 (RFC 8032). A manifest is signed as it is: its exact bytes. An order is signed as
:data:`ORDER_CONTEXT` followed by the exact msgpack bytes of its body, so that neither signature can be shown as one of
the other kind. What it says of masks, roster, mail and reveal, is signed with its kind under :data:`MASKING_CONTEXT`:
nobody between can agree on masks in a device's place. What a device says of masks it signs with its certificate's key,
with kind and run, under :data:`DEVICE_MASKING_CONTEXT`: ECDSA on P-256 and SHA-256, ``r || s``. When the coordinator's
key is changed it signs which keys count from then on, under :data:`SIGNERS_CONTEXT`.

A device in a browser signs with ECDSA on P-256 and SHA-256, ``r || s`` as WebCrypto gives it: every message, under
:data:`MESSAGE_CONTEXT`, and once its claim, under :data:`CLAIM_CONTEXT`.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge.contracts.errors import MessageRejected

SIGNATURE_BYTES = 64
ORDER_CONTEXT = b"apportion.order/1\n"
MESSAGE_CONTEXT = b"apportion.message/1\n"
CLAIM_CONTEXT = b"apportion.claim/1\n"
SIGNERS_CONTEXT = b"apportion.signers/1\n"
MASKING_CONTEXT = b"apportion.masking/1\n"
DEVICE_MASKING_CONTEXT = b"apportion.masking-device/1\n"


def order_message(body: bytes) -> bytes:
    """The bytes that are signed for an order whose body, as it travels, is ``body``."""
    return ORDER_CONTEXT + body


def message_text(federation: str, device: str, kind: str, message_id: str, body: bytes) -> bytes:
    """The bytes that a browser device signs for a message whose body, as it travels, is ``body``.

    Raises:
        MessageRejected: one of the texts holds a line feed, which would let parts be read as other parts.
    """
    texts = (federation, device, kind, message_id)
    if any("\n" in text for text in texts):
        raise MessageRejected("a federation, device, kind or message id with a line feed cannot be signed")
    return MESSAGE_CONTEXT + "".join(f"{text}\n" for text in texts).encode() + body


def masking_text(kind: str, body: bytes) -> bytes:
    """The bytes that are signed for what the coordinator says of masks, as ``kind``, with ``body`` as it travels."""
    return MASKING_CONTEXT + f"{kind}\n".encode() + body


def device_masking_text(run: str, kind: str, body: bytes) -> bytes:
    """The bytes that a device signs for what it says of masks in the run with nonce ``run``, as ``kind``."""
    return DEVICE_MASKING_CONTEXT + f"{run}\n{kind}\n".encode() + body


def signers_text(number: int, keys: Sequence[bytes]) -> bytes:
    """The bytes that are signed for statement ``number``, that ``keys`` sign from now on: a line each, in hex."""
    return SIGNERS_CONTEXT + f"{number}\n".encode() + b"".join(key.hex().encode() + b"\n" for key in keys)


def claim_text(token: str, public_key: str) -> bytes:
    """The bytes that a browser signs for a claim; ``public_key`` is the base64 text of its request."""
    return CLAIM_CONTEXT + f"{token}\n{public_key}".encode()
