"""The coordinator's Ed25519 key: signs the exact bytes of manifests and orders; :mod:`edge.trust` checks them."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.identity.folder import PRIVATE, PUBLIC, IdentityFolder, write_file
from edge.contracts.errors import IdentityRefused
from edge.contracts.signing import order_message


class SigningKey:
    """Signs for a coordinator. Ed25519 is deterministic: what is sent again has the same signature."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def create(cls, folder: IdentityFolder) -> SigningKey:
        """A new key, written to ``folder``."""
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_file(folder.signing_key, private, PRIVATE)
        write_file(folder.signing_public, cls(key).public_pem, PUBLIC)
        return cls(key)

    @classmethod
    def load(cls, root: Path) -> SigningKey:
        """The key of the identity in ``root``.

        Raises:
            IdentityRefused: none is there.
        """
        path = IdentityFolder(root).signing_key
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise IdentityRefused(
                f"{path}: no signing key can be read there ({error})", hint="apportion ca init FOLDER makes an identity"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise IdentityRefused(f"{path} holds a {type(key).__name__}, an Ed25519 key is wanted")
        return cls(key)

    @property
    def public_pem(self) -> bytes:
        """The public key as PEM, what ``apportion agent --trust`` takes."""
        return self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def manifest(self, data: bytes) -> bytes:
        """Signature of a manifest's exact bytes."""
        return self._key.sign(data)

    def order(self, body: bytes) -> bytes:
        """Signature of the exact bytes of an order's body."""
        return self._key.sign(order_message(body))
