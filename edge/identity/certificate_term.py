"""From when to when a certificate is good, read without ``cryptography``: an agent without keys does not load that."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from edge.contracts.errors import ConfigError

DAY_S = 86_400.0
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
"""Tags of ASN.1's DER."""


@dataclass(frozen=True)
class Term:
    """Seconds since 1970."""

    not_before: float
    not_after: float

    @property
    def warn_from(self) -> float:
        """When there should have been another one: the last 14 days, of a shorter one its last eighth."""
        return self.not_after - min(14 * DAY_S, (self.not_after - self.not_before) / 8)

    @property
    def renew_from(self) -> float:
        """When another one may be had: the last 30 days, of a shorter one its last third."""
        return self.not_after - min(30 * DAY_S, (self.not_after - self.not_before) / 3)

    def warning(self, now: float) -> str:
        """Words about an end that is near or past; empty before that."""
        if now < self.warn_from:
            return ""
        until = f"{datetime.fromtimestamp(self.not_after, UTC):%Y-%m-%d %H:%M} UTC"
        if now >= self.not_after:
            return f"this device's certificate ended {until}: no new connection is let in; enrol the device again"
        return f"this device's certificate ends {until} and was not renewed yet: without that it is then shut out"


def read_term(path: Path) -> Term:
    """The term of the first certificate in the PEM file ``path``.

    Raises:
        ConfigError: no certificate can be read there.
    """
    try:
        found = _PEM.search(path.read_bytes())
        if found is None:
            raise ValueError("no PEM certificate")
        return _term(base64.b64decode(found[1]))
    except (OSError, ValueError, IndexError, binascii.Error) as error:
        raise ConfigError([f"--cert: {path} cannot be read ({error})"]) from error


def _term(der: bytes) -> Term:
    # Certificate { TBSCertificate { [0] version, serial, signature, issuer, Validity { Time, Time }: RFC 5280, 4.1.
    _, body, _ = _element(der, _SEQUENCE)
    _, rest, _ = _element(body, _SEQUENCE)
    if rest[0] == _VERSION:
        rest = _element(rest)[2]
    for _ in range(3):
        rest = _element(rest)[2]
    _, validity, _ = _element(rest, _SEQUENCE)
    tag, since, later = _element(validity)
    end_tag, until, _ = _element(later)
    return Term(_time(tag, since), _time(end_tag, until))


def _element(data: bytes, wanted: int | None = None) -> tuple[int, bytes, bytes]:
    """Tag and content of the first element, and what follows it."""
    tag, length, start = data[0], data[1], 2
    if wanted is not None and tag != wanted:
        raise ValueError(f"tag {tag:#x}, {wanted:#x} expected")
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("cut short")
    return tag, data[start : start + length], data[start + length :]


def _time(tag: int, text: bytes) -> float:
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"tag {tag:#x} is no time")
    digits = text.decode("ascii")
    if tag == _UTC_TIME:
        digits = ("20" if int(digits[:2]) < 50 else "19") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
