"""The coordinator's Ed25519 key: signs the bytes of manifests and orders; :mod:`edge.identity.trust` checks them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.identity.folder import PRIVATE, PUBLIC, IdentityFolder, write_file
from coordinator.identity.records import Records
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.errors import IdentityRefused, MessageRejected
from edge.contracts.identity import MAX_STATEMENTS, KeyStatement, Signers
from edge.contracts.signing import masking_text, order_message, signers_text

_MAX_STATEMENTS_BYTES = 1 << 20


class SigningKey:
    """Signs for a coordinator. Ed25519 is deterministic: what is sent again has the same signature.

    Attributes:
        statements: every change there was of the key that signs, oldest first, for devices to follow.
    """

    def __init__(self, key: Ed25519PrivateKey, statements: Sequence[KeyStatement] = ()) -> None:
        self._key = key
        self.statements = tuple(statements)

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key, written nowhere."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def create(cls, folder: IdentityFolder) -> SigningKey:
        """A new key, written to ``folder``."""
        made = cls.generate()
        write_file(folder.signing_key, made.private_pem, PRIVATE)
        write_file(folder.signing_public, made.public_pem, PUBLIC)
        return made

    @classmethod
    def load(cls, root: Path) -> SigningKey:
        """The key of the identity in ``root``.

        Raises:
            IdentityRefused: none is there, or the end of the one there was stated and not carried out.
        """
        folder = IdentityFolder(root)
        found = cls(read_private(folder.signing_key), read_statements(folder))
        if found.statements and found.public_raw not in found.statements[-1].keys:
            raise IdentityRefused(
                f"{folder.signing_key}: that key was retired and the change was interrupted",
                hint="give the same command again: apportion ca signing-key retire",
            )
        return found

    @property
    def private_pem(self) -> bytes:
        """The private key as PEM, not encrypted."""
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def public_raw(self) -> bytes:
        """The public key's 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @property
    def public_pem(self) -> bytes:
        """The public key as PEM, what ``apportion agent --trust`` takes."""
        return self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def manifest(self, data: bytes) -> bytes:
        """Signature of a manifest's exact bytes."""
        return self._key.sign(data)

    def sign(self, data: bytes) -> bytes:
        """Signature of ``data``, which says itself what it is."""
        return self._key.sign(data)

    def order(self, body: bytes) -> bytes:
        """Signature of the exact bytes of an order's body."""
        return self._key.sign(order_message(body))

    def masking(self, kind: str, body: bytes) -> bytes:
        """Signature of the exact bytes of what is said of masks."""
        return self._key.sign(masking_text(kind, body))


def read_private(path: Path) -> Ed25519PrivateKey:
    """The key in a PEM file.

    Raises:
        IdentityRefused: none is there.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise IdentityRefused(
            f"{path}: no signing key can be read there ({error})", hint="apportion ca init FOLDER makes an identity"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityRefused(f"{path} holds a {type(key).__name__}, an Ed25519 key is wanted")
    return key


def read_statements(folder: IdentityFolder) -> list[KeyStatement]:
    """The changes of an identity's signing key, oldest first; none where it is the first one.

    Raises:
        IdentityRefused: they cannot be read.
    """
    try:
        data = folder.signers.read_bytes() if folder.signers.exists() else b""
        return list(decode_msgpack(data, Signers, limit=_MAX_STATEMENTS_BYTES).statements) if data else []
    except (OSError, MessageRejected) as error:
        raise IdentityRefused(f"{folder.signers}: {error}", hint="bring the folder back from a backup") from error


def write_statements(folder: IdentityFolder, statements: Sequence[KeyStatement]) -> None:
    """Keep the changes, all of them."""
    write_file(folder.signers, encode_msgpack(Signers(tuple(statements))), PUBLIC)


NEXT = "apportion ca signing-key retire"


def introduce(root: Path) -> KeyStatement:
    """Make a new key that devices trust beside the old one, which goes on signing.

    Raises:
        IdentityRefused: one was introduced already, or nothing can be read there.
    """
    folder, current = IdentityFolder(root), SigningKey.load(root)
    statements = read_statements(folder)
    if folder.next_signing_key.exists() and len(statements[-1].keys if statements else ()) > 1:
        raise IdentityRefused(f"{root}: a new signing key waits already for the old one's end", hint=NEXT)
    if len(statements) + 2 > MAX_STATEMENTS:
        raise IdentityRefused(f"{root}: {len(statements)} changes of the signing key are the most that devices follow")
    new = SigningKey.generate()
    write_file(folder.next_signing_key, new.private_pem, PRIVATE)
    made = _stated(statements, (current.public_raw, new.public_raw), current)
    write_file(folder.signing_public, current.public_pem + new.public_pem, PUBLIC)
    _log(folder, "signing-key-added", made)
    write_statements(folder, [*statements, made])  # last: with it the rest is there
    return made


def retire(root: Path) -> KeyStatement:
    """Have the new key sign, and the old one count no more. An interrupted call is finished by the next one.

    Raises:
        IdentityRefused: none was introduced.
    """
    folder = IdentityFolder(root)
    statements = read_statements(folder)
    if not folder.next_signing_key.exists() or not statements:
        raise IdentityRefused(f"{root}: no new signing key was introduced", hint="apportion ca signing-key new")
    new = SigningKey(read_private(folder.next_signing_key))
    if statements[-1].keys != (new.public_raw,):
        statements = [*statements, _stated(statements, (new.public_raw,), new)]
        _log(folder, "signing-key-retired", statements[-1])
        write_statements(folder, statements)
    write_file(folder.signing_key, new.private_pem, PRIVATE)
    write_file(folder.signing_public, new.public_pem, PUBLIC)
    folder.next_signing_key.unlink()
    return statements[-1]


def _log(folder: IdentityFolder, action: str, statement: KeyStatement) -> None:
    """Before the statement is there, and again when an interrupted command is repeated."""
    with contextlib.closing(Records(folder.records)) as records, records.transaction():
        records.log(action, "", change=statement.number, keys=[key.hex() for key in statement.keys])


def _stated(statements: list[KeyStatement], keys: tuple[bytes, ...], signer: SigningKey) -> KeyStatement:
    number = statements[-1].number + 1 if statements else 1
    return KeyStatement(number, keys, signer.sign(signers_text(number, keys)))
