"""Who signs for an authority: its root, or an issuing certificate that the root has signed and that is changed by time.

With the root's key elsewhere (``apportion ca init --offline-root``) the identity's folder holds an issuing certificate:
whoever takes the folder can issue until that ends or is replaced, and the root, which every device trusts, is not lost.
Former issuers stay in the folder, to sign the revocation lists of what they issued.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coordinator.identity.certificates import certificate_pem, issuing_certificate, key_pem, new_key, root_certificate
from coordinator.identity.folder import PRIVATE, PUBLIC, IdentityFolder, key_beside, write_file
from edge.contracts.errors import IdentityRefused

ISSUER_DAYS = 730
PASSPHRASE_BYTES = 8
"""Least length of the passphrase that a root's key is kept under."""


@dataclass(frozen=True)
class Issuer:
    """A certificate that signs, its key, and the PEM sent after what it signed: itself, nothing if it is the root."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    chain: bytes = b""

    def require_valid(self, now: datetime.datetime, is_root: bool) -> None:
        """Check that it may sign at ``now``.

        Raises:
            IdentityRefused: its validity ends within a day.
        """
        until = self.certificate.not_valid_after_utc
        if now + datetime.timedelta(days=1) <= until:
            return
        what, hint = "the issuing certificate", "have the root sign another: apportion ca rotate --offline-root DIR"
        if is_root:
            what, hint = "the root", "make a new identity with apportion ca init, and enrol the devices again"
        raise IdentityRefused(f"{what}'s validity ends {until:%Y-%m-%d}: it cannot issue any more", hint=hint)

    def has_issued(self, pem: bytes) -> bool:
        """Whether the first certificate in ``pem`` is of this issuer's key."""
        found = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.AuthorityKeyIdentifier)
        own = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        return found.value.key_identifier == own.digest


@dataclass(frozen=True)
class Issuers:
    """The root and who signs in its name.

    Attributes:
        current: signs what is issued now.
        former: signed what was issued before and may still stand.
    """

    root: x509.Certificate
    current: Issuer
    former: tuple[Issuer, ...] = ()

    @property
    def all(self) -> tuple[Issuer, ...]:
        """The current one first."""
        return (self.current, *self.former)

    @classmethod
    def load(cls, folder: IdentityFolder) -> Issuers:
        """Those of an identity.

        Raises:
            IdentityRefused: a file is missing, unreadable, or not of the others.
        """
        try:
            root = x509.load_pem_x509_certificate(folder.ca.read_bytes())
            if not folder.issuers:
                return cls(root, Issuer(root, _own_key(folder.ca, root)))
            current, *others = [_issuer(path, root) for path in reversed(folder.issuers)]
        except (OSError, ValueError, TypeError) as error:
            raise IdentityRefused(
                f"{folder.root}: the root cannot be read ({error})", hint="bring the folder back from a backup"
            ) from error
        return cls(root, current, tuple(others))


def create_root(folder: IdentityFolder, name: str, now: datetime.datetime, valid: datetime.timedelta) -> None:
    """A root whose key is in the identity's folder and signs everything itself."""
    key = new_key()
    write_file(folder.ca_key, key_pem(key), PRIVATE)
    write_file(folder.ca, certificate_pem(root_certificate(key, f"{name} root", now, valid)), PUBLIC)


@dataclass(frozen=True)
class OfflineRoot:
    """A root whose key is in a folder of its own, encrypted: on a stick in a drawer, most of the time.

    Attributes:
        folder: ``root.pem`` and ``root.key``.
    """

    folder: Path
    passphrase: str = field(repr=False)

    def create(self, name: str, now: datetime.datetime, valid: datetime.timedelta) -> None:
        """Make it; it may sign issuing certificates.

        Raises:
            IdentityRefused: something is there already, or the passphrase is too short.
        """
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise IdentityRefused(
                f"{self.folder} exists and is not empty: no root was written", hint="give a new folder"
            )
        if len(self.passphrase.encode()) < PASSPHRASE_BYTES:
            raise IdentityRefused(
                f"the root's passphrase has fewer than {PASSPHRASE_BYTES} bytes", hint="give a longer one"
            )
        key = new_key()
        encrypted = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(self.passphrase.encode()),
        )
        certificate = root_certificate(key, f"{name} root", now, valid, path_length=1)
        write_file(self.folder / "root.key", encrypted, PRIVATE)
        write_file(self.folder / "root.pem", certificate_pem(certificate), PUBLIC)

    def sign_issuer(
        self, identity: IdentityFolder, now: datetime.datetime, *, days: int = ISSUER_DAYS
    ) -> x509.Certificate:
        """A new issuing certificate in ``identity``, which from now on signs what is issued.

        Raises:
            IdentityRefused: no root there, another one than the identity's, a wrong passphrase, or a root about to end.
        """
        try:
            root = x509.load_pem_x509_certificate((self.folder / "root.pem").read_bytes())
            key = serialization.load_pem_private_key((self.folder / "root.key").read_bytes(), self.passphrase.encode())
        except (OSError, ValueError, TypeError) as error:
            raise IdentityRefused(
                f"{self.folder}: the root cannot be opened ({error})",
                hint="give the folder of the root and its passphrase",
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != root.public_key():
            raise IdentityRefused(f"{self.folder}: root.key is not the key of root.pem", hint="bring it from a backup")
        if identity.ca.exists() and identity.ca.read_bytes() != certificate_pem(root):
            raise IdentityRefused(f"{self.folder} holds another root than the identity {identity.root}")
        Issuer(root, key).require_valid(now, is_root=True)
        path, own = identity.issuer(len(identity.issuers) + 1), new_key()
        (name,) = root.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        made = issuing_certificate(own.public_key(), f"{name.value!s} issuer {path.stem}", root, key, now, days)
        write_file(identity.ca, certificate_pem(root), PUBLIC)
        write_file(key_beside(path), key_pem(own), PRIVATE)
        write_file(path, certificate_pem(made), PUBLIC)  # last: with it the rest is there
        return made


def _issuer(path: Path, root: x509.Certificate) -> Issuer:
    pem = path.read_bytes()
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.verify_directly_issued_by(root)
    return Issuer(certificate, _own_key(path, certificate), pem)


def _own_key(path: Path, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
    own = key_beside(path)
    key = serialization.load_pem_private_key(own.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError(f"{own.name} is not the key of {path.name}")
    return key
