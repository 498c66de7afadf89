"""Certificates for thousands of light devices from a test's own throw-away identity, quickly: they share one key.

Made with the root's key directly and not entered in the identity's record: nobody revokes them, and the topics of a
device follow from the name in its certificate.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

VALID = datetime.timedelta(days=1)
SLACK = datetime.timedelta(hours=1)
"""A certificate is valid from so long before it is made, but not from before its root."""


def device_certificates(identity: Path, folder: Path, names: Iterable[str]) -> Path:
    """``folder`` with ``<name>.pem`` for each name, and their ``key.pem``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    root = x509.load_pem_x509_certificate((identity / "ca.pem").read_bytes())
    root_key = serialization.load_pem_private_key((identity / "ca.key").read_bytes(), None)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    base = (
        x509.CertificateBuilder()
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .not_valid_before(max(now - SLACK, root.not_valid_before_utc))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
    )
    for name in names:
        made = (
            base.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .serial_number(x509.random_serial_number())
            .sign(root_key, hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder
