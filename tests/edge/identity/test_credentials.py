"""An agent renews its own certificate in time and takes up nothing that is not its own."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from coordinator.identity.authority import Authority
from coordinator.identity.renewals import renew_device
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.errors import MessageRejected
from edge.contracts.identity import Renew, Renewed
from edge.identity.certificate_term import DAY_S, Term, read_term
from edge.identity.credentials import CertificateFiles, Credentials, renew_at
from edge.identity.device_identity import make_request
from tests.edge.agent_bench import Bench


class Device:
    """Files of one device of an authority, and an agent's credentials over them with a clock of the test's."""

    def __init__(self, folder: Path, authority: Authority, *, days: int) -> None:
        self.folder, self.authority, self.taken_up, self.sent = folder, authority, 0, list[tuple[str, Any]]()
        made = make_request(folder, "pi-07")
        issued = authority.sign_device(made.request.read_bytes(), "pi-07", days=days)
        (folder / "ca.pem").write_bytes(authority.folder.ca.read_bytes())
        self.certificate = folder / "device.pem"
        self.certificate.write_bytes(issued.certificate.pem)
        self.key = made.key.read_bytes()
        self.now = authority.now()
        files = CertificateFiles(folder / "ca.pem", self.certificate, made.key, self._take_up)
        self.credentials = Credentials("pi-07", files, None, self._send, now=lambda: self.now)

    def _take_up(self) -> None:
        self.taken_up += 1

    def _send(self, kind: str, body: Any) -> None:
        self.sent.append((kind, body))

    def receive(self, pem: bytes) -> None:
        assert self.credentials.received(envelope(Renewed(pem.decode())))


def envelope(body: Renewed) -> Envelope:
    return unseal(seal("renewed", body))


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    with Authority.create(tmp_path / "identity") as made:
        yield made


@pytest.fixture
def device(tmp_path: Path, authority: Authority) -> Device:
    return Device(tmp_path / "device", authority, days=20)


def test_device_renews_in_time_with_the_same_key(device: Device, authority: Authority) -> None:
    before = read_term(device.certificate)
    device.now = renew_at(before, "pi-07") - 10
    device.credentials.tick(1.0, is_connected=True)
    assert device.sent == []
    device.now += 20
    device.credentials.tick(2.0, is_connected=True)  # looked at an hour ago at the earliest
    assert device.sent == []
    device.credentials.tick(3_602.0, is_connected=True)
    ((kind, asked),) = device.sent
    assert kind == "renew"
    device.receive(renew_device(authority, "pi-07", asked.csr.encode()))
    assert read_term(device.certificate).not_after > before.not_after + 300 * DAY_S
    assert device.taken_up == 1
    assert (device.folder / "device.key").read_bytes() == device.key
    device.credentials.tick(7_300.0, is_connected=True)
    assert len(device.sent) == 1
    rows = authority.records.certificates("device")
    assert [row.status(authority.now()) for row in rows] == ["valid", "valid"]  # the former one until its end


def test_answer_that_was_lost_is_asked_for_again_and_is_the_same(device: Device, authority: Authority) -> None:
    device.now = read_term(device.certificate).not_after - 60
    for monotonic in (1.0, 4_000.0):
        device.credentials.tick(monotonic, is_connected=True)
    first, second = (renew_device(authority, "pi-07", asked.csr.encode()) for _, asked in device.sent)
    assert first == second
    device.receive(first)
    device.receive(second)
    assert device.taken_up == 1


def test_nothing_is_asked_without_a_connection_or_after_the_end(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.now = read_term(device.certificate).not_after - 60
    device.credentials.tick(1.0, is_connected=False)
    device.now += 120
    with caplog.at_level(logging.WARNING):
        device.credentials.tick(2.0, is_connected=True)
    assert device.sent == []
    assert "certificate ended" in caplog.text


def test_agent_warns_before_its_certificate_ends(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    device.now = read_term(device.certificate).not_after - 2 * DAY_S
    with caplog.at_level(logging.WARNING):
        device.credentials.tick(1.0, is_connected=True)
    assert "certificate ends" in caplog.text


@pytest.mark.parametrize("whose", ["foreign authority", "another device", "another key", "no certificate"])
def test_what_is_not_its_own_is_refused_and_the_former_stays(
    device: Device, authority: Authority, tmp_path: Path, whose: str
) -> None:
    other = make_request(tmp_path / "other", "pi-08" if whose == "another device" else "pi-07").request.read_bytes()
    if whose == "foreign authority":
        with Authority.create(tmp_path / "foreign") as foreign:
            pem = foreign.sign_device((device.folder / "device.csr").read_bytes(), "pi-07").certificate.pem
    elif whose == "no certificate":
        pem = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    else:
        name = "pi-08" if whose == "another device" else "pi-07"
        pem = authority.sign_device(other, name, replace=True).certificate.pem
    before = device.certificate.read_bytes()
    with pytest.raises(MessageRejected, match="the former one stays"):
        device.receive(pem)
    assert device.certificate.read_bytes() == before
    assert device.taken_up == 0


def test_folder_that_cannot_be_written_is_told_and_the_agent_goes_on(
    device: Device, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, data: bytes, mode: int) -> None:
        raise PermissionError(f"{path} is read-only")

    monkeypatch.setattr("edge.identity.device_identity.write_whole", refuse)
    pem = renew_device(authority, "pi-07", (device.folder / "device.csr").read_bytes())
    with caplog.at_level(logging.WARNING):
        device.receive(pem)
    assert "is read-only" in caplog.text
    assert device.taken_up == 0


def test_devices_that_were_enrolled_together_do_not_ask_together() -> None:
    year = Term(0.0, 365 * DAY_S)
    asked = sorted(renew_at(year, f"pi-{number}") for number in range(100))
    assert asked[0] >= 335 * DAY_S
    assert asked[-1] <= 345 * DAY_S
    assert asked[-1] - asked[0] > 8 * DAY_S


def test_renewal_crosses_a_change_of_the_issuer(tmp_path: Path) -> None:
    from coordinator.identity.issuers import OfflineRoot

    root = OfflineRoot(tmp_path / "root", "a long passphrase")
    with Authority.create(tmp_path / "identity", offline_root=root) as authority:
        device = Device(tmp_path / "device", authority, days=20)
    root.sign_issuer(authority.folder, datetime.datetime.now(datetime.UTC))
    with Authority(tmp_path / "identity") as authority:
        pem = renew_device(authority, "pi-07", (device.folder / "device.csr").read_bytes())
    device.receive(pem)
    leaf, issuer = x509.load_pem_x509_certificates(device.certificate.read_bytes())
    assert leaf.issuer == issuer.subject
    assert "issuer 0002" in issuer.subject.rfc4514_string()


def test_credentials_without_files_ask_for_nothing_and_leave_other_kinds_alone() -> None:
    sent: list[object] = []
    none = Credentials("pi-07", None, None, lambda kind, body: sent.append(body))
    none.tick(1.0, is_connected=True)
    assert none.received(unseal(seal("renew", Renew("x")))) is False
    assert sent == []


def test_running_agent_renews_by_itself_and_trains_on(bench: Bench, tmp_path: Path) -> None:
    made = make_request(tmp_path / "dev-1", "dev-1")
    own = tmp_path / "dev-1" / "device.pem"
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=350)
    identity = tmp_path / "earlier"
    with Authority.create(identity, now=lambda: then) as earlier:
        own.write_bytes(earlier.sign_device(made.request.read_bytes(), "dev-1").certificate.pem)
    taken_up: list[bytes] = []
    files = CertificateFiles(identity / "ca.pem", own, made.key, lambda: taken_up.append(own.read_bytes()))
    bench.agent(certificate=files)
    asked = bench.coordinator.wait_for("renew")
    job = bench.publish()
    bench.coordinator.order(job.order)
    with Authority(identity) as authority:
        renewed = renew_device(authority, "dev-1", asked.csr.encode())
    bench.coordinator.send("renewed", Renewed(renewed.decode()))
    assert bench.coordinator.wait_for("report").assignment_id == job.order.assignment_id
    assert taken_up == [renewed]
    assert own.read_bytes() == renewed
    assert "error" not in bench.coordinator.kinds()
