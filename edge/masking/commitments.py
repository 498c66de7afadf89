"""What a device commits itself to when it gives its shares, so that a wrong share is its giver's or its holder's.

The digests go to the coordinator in the open: a share is a value of a polynomial with random coefficients, of 521 bits,
and a seed has 256, so that a digest tells nothing of either.
"""

from __future__ import annotations

import hashlib

from edge.contracts.errors import MessageRejected
from edge.contracts.masking import KEY_BYTES
from edge.masking.keys import agree, opened, public_of, sealed
from edge.masking.shares import SHARE_BYTES

DIGEST_BYTES = 32
PAIR_BYTES = 2 * DIGEST_BYTES
"""Digests of the two shares, of the self mask and of the masking key, that one device gives another."""

BOX_BYTES = 2 * SHARE_BYTES + 16
"""Two shares, sealed."""

PARCEL_BYTES = KEY_BYTES + BOX_BYTES + PAIR_BYTES
"""What one device gives another: a public key made for it alone, a box, and the digests of what is in it."""


def digest_of(secret: bytes) -> bytes:
    """The digest of a share or of a seed."""
    return hashlib.sha256(b"apportion.masking/1\n" + secret).digest()


def digests_of(shares: bytes) -> bytes:
    """The digests of a self mask's share and of a masking key's, one after the other in ``shares``."""
    return digest_of(shares[:SHARE_BYTES]) + digest_of(shares[SHARE_BYTES:])


def packed(ephemeral: bytes, receiver: bytes, purpose: str, shares: bytes) -> bytes:
    """``shares`` for the owner of the public key ``receiver``, under the private key ``ephemeral`` made for it."""
    return public_of(ephemeral) + sealed(agree(ephemeral, receiver, purpose), shares) + digests_of(shares)


def key_of(parcel: bytes) -> bytes:
    """The public key that ``parcel`` was sealed with."""
    return parcel[:KEY_BYTES]


def digests_in(parcel: bytes) -> bytes:
    """What ``parcel`` says its shares' digests are."""
    return parcel[-PAIR_BYTES:]


def unpacked(private: bytes, public: bytes, purpose: str, parcel: bytes, *, where: str) -> bytes:
    """The two shares in ``parcel``: with the receiver's private key and the parcel's, or the other way round.

    Raises:
        MessageRejected: they cannot be opened, or are others than its digests say.
    """
    if len(parcel) != PARCEL_BYTES:
        raise MessageRejected(f"{where}: {len(parcel)} bytes for two shares, {PARCEL_BYTES} expected")
    try:
        key = agree(private, public, purpose)
    except MessageRejected as error:
        raise MessageRejected(f"{where}: {error}") from error
    shares = opened(key, parcel[KEY_BYTES:-PAIR_BYTES], where=where)
    if digests_of(shares) != digests_in(parcel):
        raise MessageRejected(f"{where}: its shares are not those it committed itself to")
    return shares
