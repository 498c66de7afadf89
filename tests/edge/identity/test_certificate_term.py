"""The term read from a certificate is the one that cryptography reads, and warnings come before the end."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from edge.contracts.errors import ConfigError
from edge.identity.certificate_term import DAY_S, Term, read_term


@pytest.mark.parametrize("years", [(2026, 2027), (2049, 2051), (1999, 2120)])
def test_term_is_the_certificates_own(tmp_path: Path, years: tuple[int, int]) -> None:
    since, until = (datetime.datetime(year, 3, 4, 5, 6, 7, tzinfo=datetime.UTC) for year in years)
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a" * 60)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "device.pem"
    path.write_bytes(
        made.public_bytes(Encoding.PEM) + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    assert read_term(path) == Term(since.timestamp(), until.timestamp())
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + whole[400:])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_term(path)


def test_warning_comes_in_the_last_fortnight_and_says_when(tmp_path: Path) -> None:
    until = datetime.datetime(2027, 3, 4, tzinfo=datetime.UTC).timestamp()
    year = Term(until - 365 * DAY_S, until)
    assert year.warning(until - 15 * DAY_S) == ""
    assert "ends 2027-03-04 00:00 UTC" in year.warning(until - 13 * DAY_S)
    assert "ended 2027-03-04" in year.warning(until)
    assert (year.renew_from, Term(until - 9, until).renew_from) == (until - 30 * DAY_S, until - 3)


@pytest.mark.parametrize("content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"])
def test_file_without_a_certificate_says_which(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "device.pem").write_bytes(content)
    with pytest.raises(ConfigError, match=r"--cert: .*device\.pem cannot be read"):
        read_term(tmp_path / "device.pem")
