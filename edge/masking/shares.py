"""A secret of 32 bytes cut into shares: any ``threshold`` of them give it back, fewer tell nothing of it.

Source: Shamir, "How to share a secret", CACM 22(11), 1979; over the prime field of the Mersenne prime 2^521 - 1.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from edge.contracts.errors import MessageRejected
from edge.contracts.masking import KEY_BYTES

PRIME = 2**521 - 1
SHARE_BYTES = 66


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """``count`` shares; number i, from 1, is the polynomial's value at i."""
    if not 1 <= threshold <= count:
        raise ValueError(f"{threshold} of {count} shares cannot be asked for")
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def recover(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from ``threshold`` of ``shares``, by their numbers.

    Raises:
        MessageRejected: too few, or shares that do not belong together.
    """
    if len(shares) < threshold:
        raise MessageRejected(f"{len(shares)} shares of a secret, {threshold} needed to recover it")
    chosen = sorted(shares)[:threshold]
    secret = 0
    for i in chosen:
        above = below = 1
        for j in chosen:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        secret = (secret + int.from_bytes(shares[i], "big") * above * pow(below, -1, PRIME)) % PRIME
    if secret >= 1 << (8 * KEY_BYTES):
        raise MessageRejected("the shares do not belong to one secret; a device sent a wrong one")
    return secret.to_bytes(KEY_BYTES, "big")
