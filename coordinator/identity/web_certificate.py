"""A certificate for the page that is not the federation's own: of an authority that strangers' phones trust already.

Looked at before anything listens, so that it is told here and not by a browser. Who issued it is the browsers' matter.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from edge.contracts.errors import IdentityRefused

WARN_DAYS = 14
_RENEW = "renew it (certbot renew); new files are read at the next start, also by apportion resume"


@dataclass(frozen=True)
class WebCertificate:
    """Files that belong together, and how long they are good.

    Attributes:
        certificate: PEM, the server's own first, then those that lead to the authority's root.
        key: PEM.
    """

    certificate: Path
    key: Path
    not_after: datetime.datetime

    def warning(self, now: datetime.datetime | None = None) -> str:
        """What to say of one that runs out within :data:`WARN_DAYS`; empty for any other."""
        left = self.not_after - (now or datetime.datetime.now(datetime.UTC))
        if left >= datetime.timedelta(days=WARN_DAYS):
            return ""
        return f"{self.certificate} runs out on {self.not_after:%Y-%m-%d}, in {left.days} days: {_RENEW}"


def read_web_certificate(
    certificate: Path, key: Path, host: str = "", *, now: datetime.datetime | None = None
) -> WebCertificate:
    """The files, found good to serve ``host`` with (any host where that is empty).

    Raises:
        IdentityRefused: one cannot be read, the key is another's, it is not for ``host``, or its time is not now.
    """
    chain, private = _read(certificate), _read(key)
    try:
        own = x509.load_pem_x509_certificates(chain)[0]
        names, public = _names(own), own.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise IdentityRefused(
            f"{certificate} holds no usable certificate in PEM", hint="give the full chain (certbot's fullchain.pem)"
        ) from error
    try:
        of_key = load_pem_private_key(private, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise IdentityRefused(
            f"{key} holds no private key in PEM that opens without a passphrase",
            hint="give the key as it was made for the certificate (certbot's privkey.pem)",
        ) from error
    shown = ", ".join(names) or "no host"
    if of_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != public:
        raise IdentityRefused(
            f"{key} is not the key of {certificate} (for {shown})",
            hint="give both of one issue; the server's own certificate is the first in its file",
        )
    if host and not any(_is_for(name, host) for name in names):
        raise IdentityRefused(
            f"{certificate} is for {shown}, not for '{host}'",
            hint="set $.broker.web to a host that it is for, or have that one certified",
        )
    now = now or datetime.datetime.now(datetime.UTC)
    if now >= own.not_valid_after_utc:
        raise IdentityRefused(f"{certificate} ran out on {own.not_valid_after_utc:%Y-%m-%d}", hint=_RENEW)
    if now < own.not_valid_before_utc:
        raise IdentityRefused(
            f"{certificate} is good from {own.not_valid_before_utc:%Y-%m-%d} on", hint="set this machine's clock"
        )
    return WebCertificate(certificate, key, own.not_valid_after_utc)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityRefused(
            f"{path} cannot be read: {error.strerror}",
            hint="give a path that this user can read; certbot's are root's: copy both, the key with mode 600",
        ) from error


def _names(certificate: x509.Certificate) -> list[str]:
    """Hosts and addresses; a common name is not one, browsers do not look at it."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def _is_for(name: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pass
    name, host = name.lower(), host.lower()
    # RFC 6125, section 6.4.3: the star is one whole label.
    return name == host or (name.startswith("*.") and host.partition(".")[2] == name[2:])
