"""X.509 as this project uses it: one root, servers, coordinators, devices, a revocation list; nothing on disk.

ECDSA on P-256 with SHA-256, which every TLS stack on a device has. A certificate is good for one side of a connection:
its extended key usage names the server or the client, so that no device can pass for the broker.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge.contracts.errors import IdentityRefused

Kind = Literal["server", "coordinator", "device"]

CLOCK_SLACK = datetime.timedelta(days=1)
"""Certificates are valid from this long before they are made: a board without a battery wakes up in the past."""

MAX_REQUEST_BYTES = 16_384


def new_key() -> ec.EllipticCurvePrivateKey:
    """A private key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS #8, not encrypted: services read it without a person at hand."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """The public key as DER, for comparing keys."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def root_certificate(
    key: ec.EllipticCurvePrivateKey,
    name: str,
    now: datetime.datetime,
    valid: datetime.timedelta,
    *,
    path_length: int = 0,
) -> x509.Certificate:
    """A self-signed root that may sign certificates and revocation lists, and ``path_length`` further authorities."""
    subject = _named(name)
    return (
        _builder(subject, subject, key.public_key(), key.public_key(), now - CLOCK_SLACK, now + valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def issuing_certificate(
    public_key: ec.EllipticCurvePublicKey,
    name: str,
    root: x509.Certificate,
    root_key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
) -> x509.Certificate:
    """An authority below ``root`` that may sign certificates and revocation lists, and no further authorities."""
    until = min(now + datetime.timedelta(days=days), root.not_valid_after_utc)
    since = max(now - CLOCK_SLACK, root.not_valid_before_utc)
    return (
        _builder(_named(name), root.subject, public_key, root_key.public_key(), since, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(root_key, hashes.SHA256())
    )


def leaf_certificate(
    kind: Kind,
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    *,
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    valid: datetime.timedelta,
    hosts: Iterable[str] = (),
) -> x509.Certificate:
    """A certificate for ``name``: a server's for ``hosts``, else a client's; never valid longer than its issuer."""
    usage = ExtendedKeyUsageOID.SERVER_AUTH if kind == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    until = min(now + valid, issuer.not_valid_after_utc)
    since = max(now - CLOCK_SLACK, issuer.not_valid_before_utc)
    builder = (
        _builder(_named(name), issuer.subject, public_key, issuer_key.public_key(), since, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    names = [_general_name(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def revocation_list(
    revoked: Iterable[tuple[int, datetime.datetime]],
    *,
    number: int,
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    this_update: datetime.datetime,
    next_update: datetime.datetime,
) -> bytes:
    """The list of ``revoked`` (serial number, when) as PEM."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(this_update)
        .next_update(next_update)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for serial, when in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes, device: str) -> ec.EllipticCurvePublicKey:
    """The public key of a certificate request for ``device``; whatever else it asks for is ignored.

    Raises:
        IdentityRefused: not a request, for another name, signed by another key than it holds, or not on P-256.
    """
    again = f"make it on the device: apportion csr --device {device} --out FOLDER"
    if len(pem) > MAX_REQUEST_BYTES:
        raise IdentityRefused(f"request of {len(pem)} bytes is over {MAX_REQUEST_BYTES}", hint=again)
    try:
        request = x509.load_pem_x509_csr(pem)
        names = [attribute.value for attribute in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise IdentityRefused(f"not a PEM certificate request ({error})", hint=again) from error
    if names != [device]:
        raise IdentityRefused(f"the request is for {names}, not for device '{device}'", hint=again)
    if not is_signed:
        raise IdentityRefused(f"the request for '{device}' is not signed by the key it holds", hint=again)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityRefused(
            f"the request for '{device}' has a {type(key).__name__}; keys are on the curve P-256", hint=again
        )
    return key


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    since: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
