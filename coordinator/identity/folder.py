"""Where an identity's files are, and how they are written: whole or not at all, keys for their owner alone.

::

    <folder>/ca.pem                      the root: to devices, and to whoever checks them
    <folder>/ca.key                      its private key: never leaves the folder; of an offline root not here at all
    <folder>/issuers/<number>.{pem,key}  with an offline root: the last one signs in its name
    <folder>/crl.pem                     what was revoked: to the broker
    <folder>/signing.pub                 checks manifests and orders: to devices (--trust)
    <folder>/signing.key                 signs them: never leaves the folder
    <folder>/signing-next.key            the key that will, once the former one is retired
    <folder>/signers.msgpack             every change of these keys, signed: to devices, by runs
    <folder>/identity.sqlite             what was issued, and claim tokens (hashed)
    <folder>/server/<host>.{pem,key}     the broker's
    <folder>/coordinator/<name>.{pem,key}
    <folder>/devices/<id>.pem            keys of devices are on the devices
    <folder>/local/<id>/                 except those of agents started on this machine
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edge.system.atomic_files import publish_file, sync

PUBLIC, PRIVATE = 0o644, 0o600
EMBEDDED_PID_NAME = "amqtt.pid"
"""In the folder of an embedded broker with browsers while it runs; it has no configuration there to be known by."""


@dataclass(frozen=True)
class IdentityFolder:
    """Paths below ``root``; nothing is read or made here."""

    root: Path

    @property
    def ca(self) -> Path:
        """The root's certificate."""
        return self.root / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """The root's private key."""
        return self.root / "ca.key"

    @property
    def issuers(self) -> list[Path]:
        """Issuing certificates, oldest first, where the root is kept elsewhere; a key beside each ends in ``.key``."""
        return sorted((self.root / "issuers").glob("[0-9]*.pem"))

    def issuer(self, number: int) -> Path:
        """The issuing certificate of that number, from 1."""
        return self.root / "issuers" / f"{number:04}.pem"

    @property
    def crl(self) -> Path:
        """The revocation list."""
        return self.root / "crl.pem"

    @property
    def signing_key(self) -> Path:
        """The Ed25519 private key."""
        return self.root / "signing.key"

    @property
    def signing_public(self) -> Path:
        """The Ed25519 public key."""
        return self.root / "signing.pub"

    @property
    def next_signing_key(self) -> Path:
        """The Ed25519 private key that devices trust already and that signs nothing yet."""
        return self.root / "signing-next.key"

    @property
    def signers(self) -> Path:
        """The statements about which keys sign."""
        return self.root / "signers.msgpack"

    @property
    def records(self) -> Path:
        """What was issued."""
        return self.root / "identity.sqlite"

    def server(self, host: str) -> Path:
        """A server's certificate; its key beside it ends in ``.key``."""
        return self.root / "server" / f"{host.replace(':', '_')}.pem"

    def coordinator(self, federation: str) -> Path:
        """A coordinator's certificate; its key beside it ends in ``.key``."""
        return self.root / "coordinator" / f"{federation}.pem"

    def device(self, device: str) -> Path:
        """A device's certificate."""
        return self.root / "devices" / f"{device}.pem"


def key_beside(certificate: Path) -> Path:
    """Where the private key of ``certificate`` is."""
    return certificate.with_suffix(".key") if certificate.suffix == ".pem" else Path(f"{certificate}.key")


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Put ``data`` at ``path`` with ``mode`` from its first byte on; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            sync(file)
        publish_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
