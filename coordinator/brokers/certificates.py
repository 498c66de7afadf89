"""Throw-away certificates for a broker on this machine: one authority, one server, valid for the loopback names."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

_VALID_DAYS = 30


@dataclass(frozen=True)
class ServerCertificate:
    """PEM files: the authority that clients check with, the server's certificate and its private key."""

    ca: Path
    certificate: Path
    key: Path


def server_certificate(folder: Path) -> ServerCertificate:
    """The certificate in ``folder``, made if it is not there, for ``localhost``, 127.0.0.1 and ::1.

    The authority's private key is never written: nobody can sign a second server with it.
    """
    files = ServerCertificate(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    if files.ca.exists() and files.certificate.exists() and files.key.exists():
        return files
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = named("Apportion throw-away authority")
    base = (
        x509.CertificateBuilder()
        .issuer_name(ca_name)
        # A clock may be a little behind on a device.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )
    usage = {
        name: False
        for name in (
            "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
            "decipher_only",
        )
    }  # fmt: skip
    ca = (
        base.subject_name(ca_name)
        .public_key(ca_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    server = (
        base.subject_name(named("localhost"))
        .public_key(server_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(files.key, private)
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    files.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    return files


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
