"""How a record proves whose it is: by a checksum over plain features, or encrypted where the device has a key.

::

    plain       seal (16 bytes) | features               CRC-32 of the example, of the features, 8 bytes of the key
    encrypted   nonce (12 bytes) | tag (16) | features   ChaCha20-Poly1305, the example and its place authenticated

The secret is derived from the device's private key (HKDF with SHA-256, RFC 5869), which never lies in the store. So a
copy of the store says nothing of the examples; whoever has the device's whole disk has the key, too, unless its owner
keeps that elsewhere.
"""

from __future__ import annotations

import hmac
import os
import struct
import zlib
from pathlib import Path
from typing import Protocol

from edge.contracts.errors import DeviceRefused

_KEY_BYTES, _SEAL_BYTES, _NONCE_BYTES, _TAG_BYTES = 8, 16, 12, 16
_SALT = b"apportion.features/1"


class Sealing(Protocol):
    """Between features as bytes and what of a record comes after its place.

    Attributes:
        size: bytes of a record's head that are the seal.
    """

    size: int

    def closed(self, place: int, example: bytes, features: memoryview) -> tuple[bytes, memoryview | bytes]:
        """The seal, and the bytes that are kept of ``features``, as many as those."""

    def open(self, place: int, example: bytes, seal: bytes, kept: memoryview) -> bool:
        """Whether ``seal`` and ``kept`` are those of the example; ``kept`` then holds its features."""


class Checksum:
    """Implements :class:`Sealing` without a secret: against accidents, which is all that it could be against.

    A hash took three times as long, and a fifth of a step of a small network (measured on an x86-64).

    Args:
        key: 32 bytes that stand for what features are computed with.
    """

    size = _SEAL_BYTES

    def __init__(self, key: bytes) -> None:
        self._key = key[:_KEY_BYTES]

    def closed(self, place: int, example: bytes, features: memoryview) -> tuple[bytes, memoryview | bytes]:
        """As :meth:`Sealing.closed`."""
        return self._seal(example, features), features

    def open(self, place: int, example: bytes, seal: bytes, kept: memoryview) -> bool:
        """As :meth:`Sealing.open`."""
        return seal == self._seal(example, kept)

    def _seal(self, example: bytes, features: memoryview) -> bytes:
        return struct.pack("<II", zlib.crc32(example), zlib.crc32(features)) + self._key


class Encryption:
    """Implements :class:`Sealing` with a secret of the device.

    Args:
        secret: 32 bytes of :func:`secret_of`.
        key: as of :class:`Checksum`.

    Raises:
        DeviceRefused: the library for it is missing.
    """

    size = _NONCE_BYTES + _TAG_BYTES

    def __init__(self, secret: bytes, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        except ImportError as error:
            raise DeviceRefused(f"features cannot be encrypted ({error}); install the extra identity") from error
        self._cipher = ChaCha20Poly1305(cipher_key(secret, key))
        self._invalid = InvalidTag

    def closed(self, place: int, example: bytes, features: memoryview) -> tuple[bytes, memoryview | bytes]:
        """As :meth:`Sealing.closed`."""
        nonce = os.urandom(_NONCE_BYTES)
        found = self._cipher.encrypt(nonce, features, _bound(place, example))
        return nonce + found[-_TAG_BYTES:], memoryview(found)[:-_TAG_BYTES]

    def open(self, place: int, example: bytes, seal: bytes, kept: memoryview) -> bool:
        """As :meth:`Sealing.open`."""
        nonce, tag = seal[:_NONCE_BYTES], seal[_NONCE_BYTES:]
        try:
            kept[:] = self._cipher.decrypt(nonce, bytes(kept) + tag, _bound(place, example))
        except self._invalid:
            return False
        return True


def secret_of(key_file: Path) -> bytes:
    """32 bytes that only who has the private key in ``key_file`` can derive.

    Raises:
        OSError: it cannot be read.
    """
    return hmac.digest(_SALT, key_file.read_bytes(), "sha256")


def cipher_key(secret: bytes, key: bytes) -> bytes:
    """32 bytes to encrypt the records of ``key`` with; ``secret`` is that of :func:`secret_of`."""
    return hmac.digest(secret, key + b"\x01", "sha256")


def _bound(place: int, example: bytes) -> bytes:
    return place.to_bytes(8, "little") + example
