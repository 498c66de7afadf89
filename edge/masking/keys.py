"""Keys that two devices agree on, sealed shares, and the stream of bytes that a mask is made of.

X25519, HKDF with SHA-256, ChaCha20-Poly1305 and ChaCha20 of the library ``cryptography``, loaded when the first masked
order comes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import secrets
from collections.abc import Callable

from edge.contracts.errors import MessageRejected
from edge.contracts.masking import KEY_BYTES

ABILITY = "masking-3"
"""With commitments that are signed where there are certificates; without them a device cannot be told from a liar."""


def is_able() -> bool:
    """Whether this device has the library; with it ``hello`` says so."""
    return importlib.util.find_spec("cryptography") is not None


def new_private() -> bytes:
    """A fresh X25519 private key, or a mask's seed."""
    return secrets.token_bytes(KEY_BYTES)


def public_of(private: bytes) -> bytes:
    """The public key of ``private``."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: str) -> bytes:
    """32 bytes that the owner of ``public`` finds too; other ones for every ``purpose``.

    Raises:
        MessageRejected: a public key that no key pair has.
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MessageRejected(f"a public key of {len(public)} bytes cannot be used: {error}") from error
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=f"apportion/1 {purpose}".encode()).derive(shared)


def check_public(public: bytes, *, where: str) -> None:
    """Check that keys can be agreed on with the owner of ``public``.

    Raises:
        MessageRejected: no key pair has it: of another length, or of a small order.
    """
    try:
        agree(bytes(KEY_BYTES - 1) + b"\x40", public, "check")
    except MessageRejected as error:
        raise MessageRejected(f"{where}: {error}") from error


def sealed(key: bytes, text: bytes) -> bytes:
    """``text`` under ``key``, which seals nothing else ever: the nonce is zero."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def opened(key: bytes, box: bytes, *, where: str) -> bytes:
    """What was :func:`sealed`.

    Raises:
        MessageRejected: other bytes than were sealed, or under another key.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), box, None)
    except (InvalidTag, ValueError) as error:
        raise MessageRejected(f"{where}: its sealed share cannot be opened; it was changed on the way") from error


def keystream(seed: bytes, name: str) -> Callable[[int], bytes]:
    """Gives the next so many bytes of ChaCha20 under SHA-256(seed, name), block counter and nonce 0."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = hashlib.sha256(seed + name.encode()).digest()
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: encryptor.update(bytes(count))


def pair_purpose(first: str, second: str) -> str:
    """What two assignments agree on their common mask for; the same whichever comes first."""
    return f"mask {min(first, second)} {max(first, second)}"


def share_purpose(sender: str, receiver: str) -> str:
    """What a share from ``sender`` to ``receiver`` is sealed for."""
    return f"share {sender} {receiver}"
