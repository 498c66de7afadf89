"""A root whose key is elsewhere: who signs in its name, who believes that, and what changes when it is another."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from coordinator.brokers.broker_files import ClientFiles
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token, exchange_token
from coordinator.identity.issuers import OfflineRoot
from edge.contracts import topics
from edge.contracts.claims import ClaimReply
from edge.contracts.errors import AccessDenied, IdentityRefused
from edge.identity.device_identity import make_request
from edge.identity.enrolment import EnrolmentFailed, _accept
from tests.coordinator.identity.test_mosquitto_access import Site

PASSPHRASE = "a long passphrase"
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


@pytest.fixture
def root(tmp_path: Path) -> OfflineRoot:
    return OfflineRoot(tmp_path / "stick" / "root", PASSPHRASE)


def rotate(identity: Path, root: OfflineRoot) -> None:
    with Authority(identity) as authority:
        root.sign_issuer(authority.folder, datetime.datetime.now(datetime.UTC))
    with Authority(identity) as authority:
        authority.write_crl()


def test_identity_works_without_the_root_and_does_not_hold_its_key(tmp_path: Path, root: OfflineRoot) -> None:
    Authority.create(tmp_path / "identity", offline_root=root).close()
    key = root.folder / "root.key"
    assert b"ENCRYPTED" in key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    root.folder.rename(tmp_path / "put away")
    with Authority(tmp_path / "identity") as authority:
        issued = authority.issue_server(["localhost"])
        assert not authority.folder.ca_key.exists()
        assert len(list(authority.folder.root.rglob("*.key"))) == 3  # the issuer's, the server's, the signing key
    leaf, issuer = x509.load_pem_x509_certificates(issued.path.read_bytes())
    top = x509.load_pem_x509_certificate((tmp_path / "identity" / "ca.pem").read_bytes())
    leaf.verify_directly_issued_by(issuer)
    issuer.verify_directly_issued_by(top)
    assert issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_root_signs_only_with_its_passphrase_and_for_its_own_identity(tmp_path: Path, root: OfflineRoot) -> None:
    Authority.create(tmp_path / "identity", offline_root=root).close()
    Authority.create(tmp_path / "other", offline_root=OfflineRoot(tmp_path / "other root", PASSPHRASE)).close()
    with Authority(tmp_path / "identity") as authority, Authority(tmp_path / "other") as other:
        with pytest.raises(IdentityRefused, match="the root cannot be opened"):
            OfflineRoot(root.folder, "another passphrase").sign_issuer(authority.folder, NOW)
        with pytest.raises(IdentityRefused, match="holds another root than the identity"):
            root.sign_issuer(other.folder, NOW)
        assert len(authority.folder.issuers) == len(other.folder.issuers) == 1


def test_short_passphrase_and_a_folder_in_use_are_refused(tmp_path: Path, root: OfflineRoot) -> None:
    with pytest.raises(IdentityRefused, match="fewer than 8 bytes"):
        Authority.create(tmp_path / "identity", offline_root=OfflineRoot(root.folder, "short"))
    assert not (tmp_path / "identity").exists()
    root.folder.mkdir(parents=True)
    (root.folder / "something").write_text("x")
    with pytest.raises(IdentityRefused, match="exists and is not empty: no root was written"):
        Authority.create(tmp_path / "identity", offline_root=root)
    assert PASSPHRASE not in repr(root)


def test_issuer_that_has_ended_says_what_to_do(tmp_path: Path, root: OfflineRoot) -> None:
    Authority.create(tmp_path / "identity", offline_root=root, now=lambda: NOW).close()
    later = NOW + datetime.timedelta(days=730)
    with Authority(tmp_path / "identity", now=lambda: later) as authority:
        with pytest.raises(IdentityRefused, match="the issuing certificate's validity ends 2028-10-31") as caught:
            authority.issue_server(["localhost"])
        assert "apportion ca rotate" in caught.value.hint


def test_each_issuer_signs_the_list_of_what_it_issued(tmp_path: Path, root: OfflineRoot) -> None:
    identity = tmp_path / "identity"
    Authority.create(identity, offline_root=root).close()
    with Authority(identity) as authority:
        first = authority.issue_server(["one.local"])
    rotate(identity, root)
    with Authority(identity) as authority:
        second = authority.issue_server(["two.local"])
        authority.revoke("one.local")
        authority.revoke("two.local")
        lists = authority.folder.crl.read_bytes()
        issuers = authority.issuers.all
    end = b"-----END X509 CRL-----"
    found = [x509.load_pem_x509_crl(part + end) for part in lists.split(end)[:-1]]
    serials = [[entry.serial_number for entry in one] for one in found]
    assert serials == [[int(second.certificate.serial, 16)], [int(first.certificate.serial, 16)]]
    for one, issuer in zip(found, issuers, strict=True):
        assert one.is_signature_valid(issuer.key.public_key())


def test_device_takes_a_chain_that_ends_at_its_root_and_no_other(tmp_path: Path, root: OfflineRoot) -> None:
    for name, where in (("identity", root), ("other", OfflineRoot(tmp_path / "elsewhere", PASSPHRASE))):
        Authority.create(tmp_path / name, offline_root=where).close()
    own = make_request(tmp_path / "device", "pi-1")
    csr = own.request.read_bytes()
    with Authority(tmp_path / "identity") as authority:
        claimed = exchange_token(authority, create_token(authority, "pi-1", 60), csr)
    with Authority(tmp_path / "other") as authority:
        foreign = authority.folder.ca.read_text()
        stranger = authority.issuers.current.chain.decode()
    own_root, whole = claimed.ca.decode(), claimed.certificate.decode()
    end = "-----END CERTIFICATE-----\n"
    leaf = whole.split(end)[0] + end

    def accept(certificate: str, top: str) -> None:
        reply = ClaimReply("pi-1", certificate, top, claimed.signing_public.decode())
        _accept(tmp_path / "device", "pi-1", reply, top, csr, time.time())

    for certificate, top in [
        (whole, foreign),
        (leaf, own_root),
        (leaf + stranger, own_root),
        (leaf + leaf, own_root),
        (whole + stranger, own_root),
        ("", own_root),
    ]:
        with pytest.raises(EnrolmentFailed, match="cannot be used"):
            accept(certificate, top)
        assert not (tmp_path / "device" / "device.pem").exists()
    accept(whole, own_root)
    assert (tmp_path / "device" / "device.pem").read_text() == whole


@pytest.fixture
def site(tmp_path: Path, root: OfflineRoot) -> Iterator[Site]:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    site = Site(tmp_path, root)
    try:
        yield site
    finally:
        site.close()


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_old_and_new_issuers_meet_at_one_broker_and_either_can_be_revoked(
    site: Site, root: OfflineRoot, tmp_path: Path
) -> None:
    old = site.device("pi-1")
    coordinator, device = site.coordinator(), site.agent("pi-1")
    rotate(site.identity, root)
    root.folder.rename(tmp_path / "put away")
    site.broker.reload()
    time.sleep(0.3)
    new = site.agent("pi-2")  # issued by the new one, at a broker whose own certificate is of the old one
    for client, name in ((device, "pi-1"), (new, "pi-2")):
        client.transport.publish(topics.up("fed", name, "hello"), b"up")
        coordinator.wait_for(topics.up("fed", name, "hello"))
    device.transport.stop()
    site.connect(old).transport.stop()  # who was enrolled before still comes in
    for name in ("pi-1", "pi-2"):
        files: ClientFiles = site.device(name)
        with Authority(site.identity) as authority:
            authority.revoke(name)
        site.broker.reload()
        time.sleep(0.5)
        with pytest.raises(AccessDenied):
            site.connect(files)
    site.agent("pi-3")
