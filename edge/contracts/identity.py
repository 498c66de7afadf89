"""What a device with keys and the coordinator say to each other so that neither's keys end in use."""

from __future__ import annotations

import msgspec

MAX_REQUEST_BYTES = 16_384
MAX_SIGNERS, MAX_STATEMENTS = 8, 512
"""Keys of one statement, and statements of one message."""


class Renew(msgspec.Struct, frozen=True):
    """A certificate is about to end: a request for another one, for the same key, as PEM. The request is its own proof:
    only the key can have signed it, and only the key can use what comes."""

    csr: str


class Renewed(msgspec.Struct, frozen=True):
    """The certificate, PEM, with the issuing one behind it where the root is kept offline."""

    certificate: str


class KeyStatement(msgspec.Struct, frozen=True):
    """From now on these keys, and no others, sign orders and manifests.

    Attributes:
        number: rises from 1; a device passes over what it knows.
        keys: Ed25519 public keys, 32 bytes each.
        signature: of :func:`edge.contracts.signing.signers_text`, by one of ``keys`` that was one before too.
    """

    number: int
    keys: tuple[bytes, ...]
    signature: bytes


class Signers(msgspec.Struct, frozen=True):
    """Every statement there ever was, oldest first: whoever was away for several changes follows them all."""

    statements: tuple[KeyStatement, ...]
