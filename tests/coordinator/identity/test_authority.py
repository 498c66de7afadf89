"""An authority: what its certificates say, what it refuses, what is on disk, and what OpenSSL makes of its lists."""

from __future__ import annotations

import datetime
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.identity.authority import Authority
from coordinator.identity.folder import key_beside
from edge.contracts.errors import ConfigError, IdentityRefused
from edge.identity.device_identity import make_request

DAY = datetime.timedelta(days=1)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime.datetime.now(datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Iterator[Authority]:
    with Authority.create(tmp_path / "identity", now=clock) as made:
        yield made


def request(folder: Path, device: str = "pi-07") -> bytes:
    return make_request(folder, device).request.read_bytes()


def loaded(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def openssl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed here")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_root_signs_certificates_and_lists_and_no_authorities(authority: Authority, clock: Clock) -> None:
    root = loaded(authority.folder.ca.read_bytes())
    constraints = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = root.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    assert isinstance(root.public_key(), ec.EllipticCurvePublicKey)
    assert root.not_valid_before_utc <= clock.now - DAY + datetime.timedelta(seconds=1)
    root.verify_directly_issued_by(root)


def test_keys_are_the_owners_alone(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue_server(["localhost"])
    device = make_request(tmp_path / "device", "pi-07")
    keys = [authority.folder.ca_key, authority.folder.signing_key, authority.folder.records, key_beside(issued.path)]
    assert [path.stat().st_mode & 0o777 for path in [*keys, device.key]] == [0o600] * 5
    assert authority.folder.root.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.rglob("*.tmp")) == []


def test_device_certificate_names_the_device_and_is_a_clients_only(
    authority: Authority, tmp_path: Path, clock: Clock
) -> None:
    issued = authority.sign_device(request(tmp_path), "pi-07")
    certificate = loaded(issued.path.read_bytes())
    assert [a.value for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["pi-07"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert certificate.not_valid_before_utc == (clock.now - DAY).replace(microsecond=0)
    assert certificate.not_valid_after_utc == (clock.now + 365 * DAY).replace(microsecond=0)
    certificate.verify_directly_issued_by(loaded(authority.folder.ca.read_bytes()))
    assert not key_beside(issued.path).exists()


def test_server_certificate_names_its_hosts_and_is_a_servers_only(authority: Authority) -> None:
    issued = authority.issue_server(["broker.local", "192.168.1.10", "::1"])
    certificate = loaded(issued.path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.local"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.168.1.10", "::1"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_certificate_never_outlives_its_root(tmp_path: Path, clock: Clock) -> None:
    with Authority.create(tmp_path / "identity", days=100, now=clock) as authority:
        issued = authority.issue_coordinator("digits")
        assert issued.certificate.not_after == pytest.approx(authority.root_not_after, abs=1)
        clock.now += 99.5 * DAY
        with pytest.raises(IdentityRefused, match="validity ends"):
            authority.issue_coordinator("other")


def test_same_request_gives_the_same_certificate_again(authority: Authority, tmp_path: Path) -> None:
    first = authority.sign_device(request(tmp_path), "pi-07")
    first.path.unlink()  # as after a crash between the record and the file
    again = authority.sign_device(request(tmp_path), "pi-07")
    assert (first.is_new, again.is_new) == (True, False)
    assert again.path.read_bytes() == first.certificate.pem
    server = authority.issue_server(["localhost"])
    assert authority.issue_server(["localhost"]).certificate == server.certificate


def test_another_key_under_a_name_is_refused_unless_it_replaces(authority: Authority, tmp_path: Path) -> None:
    first = authority.sign_device(request(tmp_path / "a"), "pi-07")
    with pytest.raises(
        IdentityRefused, match=f"device 'pi-07' has a certificate .* {first.certificate.serial}"
    ) as error:
        authority.sign_device(request(tmp_path / "b"), "pi-07")
    assert "apportion ca revoke pi-07" in error.value.hint
    assert first.path.read_bytes() == first.certificate.pem
    second = authority.sign_device(request(tmp_path / "b"), "pi-07", replace=True)
    rows = authority.records.certificates("device", "pi-07")
    assert [(row.serial, row.reason) for row in rows] == [
        (first.certificate.serial, "superseded"),
        (second.certificate.serial, ""),
    ]
    listed = x509.load_pem_x509_crl(authority.folder.crl.read_bytes())
    assert [f"{entry.serial_number:x}" for entry in listed] == [first.certificate.serial]


def test_last_days_renew_without_ending_the_old_certificate(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    first = authority.sign_device(request(tmp_path), "pi-07")
    clock.now += 340 * DAY
    second = authority.sign_device(request(tmp_path), "pi-07")
    assert second.certificate.serial != first.certificate.serial
    assert [c.status(authority.now()) for c in authority.records.certificates()] == ["valid", "valid"]


def test_revoked_key_is_not_certified_again(authority: Authority, tmp_path: Path) -> None:
    first = authority.sign_device(request(tmp_path / "a"), "pi-07").certificate
    authority.revoke("pi-07", reason="stolen")
    with pytest.raises(
        IdentityRefused, match=rf"key of this request was revoked \(stolen, serial {first.serial}\)"
    ) as error:
        authority.sign_device(request(tmp_path / "a"), "pi-07")
    assert "device.key" in error.value.hint
    assert authority.sign_device(request(tmp_path / "b"), "pi-07").is_new
    # Replaced is not revoked: the key may be certified once more.
    assert authority.sign_device(request(tmp_path / "b"), "pi-07", replace=True).is_new


def test_lost_key_of_a_server_is_replaced(authority: Authority) -> None:
    first = authority.issue_server(["localhost"])
    key_beside(first.path).unlink()
    second = authority.issue_server(["localhost"])
    assert second.is_new
    key = serialization.load_pem_private_key(key_beside(second.path).read_bytes(), None)
    assert key.public_key() == loaded(second.path.read_bytes()).public_key()
    assert authority.records.certificates("server")[0].reason == "superseded"


def csr(key: object, name: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def broken_signature(pem: bytes) -> bytes:
    der = bytearray(x509.load_pem_x509_csr(pem).public_bytes(serialization.Encoding.DER))
    der[der.index(b"pi-07")] ^= 1
    import base64

    body = base64.encodebytes(bytes(der)).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n".encode()


P256 = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    ("pem", "words"),
    [
        (b"", "not a PEM certificate request"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "not a PEM"),
        (b"x" * 20_000, "20000 bytes is over 16384"),
        (csr(P256, "pi-08"), r"is for \['pi-08'\], not for device 'pi-07'"),
        (csr(ec.generate_private_key(ec.SECP384R1()), "pi-07"), "keys are on the curve P-256"),
        (csr(ed25519.Ed25519PrivateKey.generate(), "pi-07"), "Ed25519PublicKey; keys are on the curve P-256"),
    ],
)
def test_unusable_request_is_refused_and_nothing_is_recorded(authority: Authority, pem: bytes, words: str) -> None:
    with pytest.raises(IdentityRefused, match=words) as error:
        authority.sign_device(pem, "pi-07")
    assert "apportion csr --device pi-07" in error.value.hint
    assert authority.records.certificates() == []


def test_request_signed_by_another_key_is_refused(authority: Authority) -> None:
    # The name was changed after signing: the signature no longer holds, and the name would be another device's.
    with pytest.raises(IdentityRefused, match="is not signed by the key it holds"):
        authority.sign_device(broken_signature(csr(P256, "pi-07")), "qi-07")


@pytest.mark.parametrize("name", ["@digits", "a/b", "+", "#", "a b", "../x", "", "x" * 65])
def test_unusable_device_id_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(IdentityRefused, match="not usable"):
        authority.sign_device(csr(P256, "pi-07"), name)


@pytest.mark.parametrize("host", ["", "a b", "-x", "http://x", "*.local", "a" * 64, "1.2.3.4.", "a" * 60 + "!"])
def test_unusable_host_is_refused(authority: Authority, host: str) -> None:
    with pytest.raises(IdentityRefused, match="neither a host name nor an address"):
        authority.issue_server([host])


def test_revocation_is_in_the_list_openssl_checks(authority: Authority, tmp_path: Path) -> None:
    good = authority.sign_device(request(tmp_path / "a", "pi-07"), "pi-07")
    bad = authority.sign_device(request(tmp_path / "b", "pi-08"), "pi-08")
    revoked = authority.revoke("pi-08", reason="lost")
    assert [c.serial for c in revoked] == [bad.certificate.serial]
    ca, crl = authority.folder.ca, authority.folder.crl
    for path, status in ((good.path, 0), (bad.path, 2)):
        done = openssl("verify", "-purpose", "sslclient", "-CAfile", ca, "-CRLfile", crl, "-crl_check", path)
        assert done.returncode == status, done.stderr
        assert ("certificate revoked" in done.stderr) == (status == 2)
    assert authority.revoke("pi-08") == []
    assert authority.records.certificates("device", "pi-08")[0].reason == "lost"


def test_openssl_holds_a_certificate_to_its_side(authority: Authority, tmp_path: Path) -> None:
    device = authority.sign_device(request(tmp_path), "pi-07").path
    server = authority.issue_server(["localhost"]).path
    for path, purpose, is_good in (
        (device, "sslclient", True),
        (device, "sslserver", False),
        (server, "sslserver", True),
        (server, "sslclient", False),
    ):
        done = openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", authority.folder.ca, path)
        assert (done.returncode == 0) == is_good, (path, purpose, done.stderr)


def test_lists_have_rising_numbers_and_dates_and_an_end(authority: Authority, clock: Clock) -> None:
    lists = []
    for _ in range(3):
        authority.write_crl(days=7)
        lists.append(x509.load_pem_x509_crl(authority.folder.crl.read_bytes()))
    numbers = [found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number for found in lists]
    assert numbers == [2, 3, 4]  # 1 was made with the authority
    dates = [found.last_update_utc for found in lists]
    assert dates[0] < dates[1] < dates[2] < clock.now
    assert lists[2].next_update_utc == (clock.now + 7 * DAY).replace(microsecond=0)
    root = loaded(authority.folder.ca.read_bytes())
    assert lists[2].is_signature_valid(root.public_key())  # type: ignore[arg-type]


def test_expired_certificates_leave_the_list(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    authority.sign_device(request(tmp_path), "pi-07")
    authority.revoke("pi-07")
    assert len(list(x509.load_pem_x509_crl(authority.folder.crl.read_bytes()))) == 1
    clock.now += 366 * DAY
    authority.write_crl()
    assert list(x509.load_pem_x509_crl(authority.folder.crl.read_bytes())) == []


def test_revoking_the_unknown_lists_the_known(authority: Authority, tmp_path: Path) -> None:
    authority.sign_device(request(tmp_path), "pi-07")
    with pytest.raises(IdentityRefused, match="nothing was issued to 'pi-70'; known: pi-07"):
        authority.revoke("pi-70")


def test_folder_in_use_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "identity").mkdir()
    (tmp_path / "identity" / "mine").write_text("keep")
    with pytest.raises(IdentityRefused, match="is not empty: nothing was written"):
        Authority.create(tmp_path / "identity")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["identity", "mine"]


def test_folder_without_an_identity_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(IdentityRefused, match=r"holds no identity: it has no identity\.sqlite") as error:
        Authority(tmp_path)
    assert "apportion ca init" in error.value.hint


def test_root_key_of_another_root_is_refused(tmp_path: Path) -> None:
    Authority.create(tmp_path / "a").close()
    Authority.create(tmp_path / "b").close()
    shutil.copy(tmp_path / "b" / "ca.key", tmp_path / "a" / "ca.key")
    with pytest.raises(IdentityRefused, match=r"ca\.key is not the key of ca\.pem"):
        Authority(tmp_path / "a")


def test_record_is_read_again_after_a_restart(tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        issued = authority.sign_device(request(tmp_path), "pi-07").certificate
    with Authority(tmp_path / "identity") as authority:
        assert authority.records.certificates() == [issued]


def test_request_keeps_the_devices_key(tmp_path: Path) -> None:
    first = make_request(tmp_path, "pi-07")
    key = first.key.read_bytes()
    before = x509.load_pem_x509_csr(first.request.read_bytes())
    again = x509.load_pem_x509_csr(make_request(tmp_path, "pi-07").request.read_bytes())
    assert first.key.read_bytes() == key
    assert again.public_key() == before.public_key()


def test_request_with_an_unusable_key_or_id_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "device.key").write_text("no key")
    with pytest.raises(ConfigError, match=r"device\.key cannot be used .* move it away"):
        make_request(tmp_path, "pi-07")
    assert (tmp_path / "device.key").read_text() == "no key"
    with pytest.raises(ConfigError, match="--device: 'a/b' is not usable"):
        make_request(tmp_path / "other", "a/b")
    assert not (tmp_path / "other").exists()


def test_record_that_another_command_holds_is_not_waited_for_for_ever(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.identity.records.BUSY_S", 0.05)
    with Authority(authority.folder.root) as other, authority.records.transaction():
        with pytest.raises(IdentityRefused, match=r"identity\.sqlite cannot be written \(database is locked\)"):
            other.sign_device(request(tmp_path), "pi-07")
    assert authority.records.certificates() == []


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_record_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    Authority.create(tmp_path / "identity").close()
    (tmp_path / "identity" / "identity.sqlite").write_bytes(content)
    with pytest.raises(IdentityRefused, match=r"identity\.sqlite"):
        Authority(tmp_path / "identity")
