"""The site's Ed25519 key: signs the orders that a relay gives its devices. ``apportion ca init`` makes one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError
from edge.contracts.identity import KeyStatement
from edge.contracts.signing import masking_text, order_message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class SiteKey:
    """Signs what devices check (:mod:`edge.identity.trust`)."""

    statements: tuple[KeyStatement, ...] = ()

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def load(cls, path: Path) -> SiteKey:
        """The key in the PEM file ``path``, a site's ``signing.key``.

        Raises:
            ConfigError: no such file, another kind of key in it, or ``cryptography`` is not installed.
        """
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise ConfigError([f"--site-key: needs the package cryptography ({error})"]) from error
        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError([f"--site-key: {path} cannot be read ({error}); give the site's signing.key"]) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError([f"--site-key: {path} holds a {type(key).__name__}, an Ed25519 key is wanted"])
        return cls(key)

    def manifest(self, data: bytes) -> bytes:
        """Signature of a manifest's exact bytes."""
        return self._key.sign(data)

    def order(self, body: bytes) -> bytes:
        """Signature of the exact bytes of an order's body."""
        return self._key.sign(order_message(body))

    def masking(self, kind: str, body: bytes) -> bytes:
        """Signature of the exact bytes of what is said of masks."""
        return self._key.sign(masking_text(kind, body))
