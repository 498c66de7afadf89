"""Who gets a certificate again and who does not, what a message comes to, and a broker that meets the new one."""

from __future__ import annotations

import datetime
import os
import queue
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator.brokers.broker_files import ClientFiles
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.identity.authority import Authority
from coordinator.identity.renewals import RenewalHandler, renew_device
from edge.contracts import topics
from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import IdentityRefused
from edge.contracts.identity import Renew, Renewed
from edge.contracts.messages import Error
from edge.identity.device_identity import make_request
from edge.transport.base import Connected, Disconnected, Event
from tests.coordinator.identity.test_authority import Clock
from tests.coordinator.identity.test_mosquitto_access import Client, Site

DAY = datetime.timedelta(days=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Iterator[Authority]:
    with Authority.create(tmp_path / "identity", now=clock) as made:
        yield made


def request(folder: Path, device: str = "pi-07") -> bytes:
    return make_request(folder, device).request.read_bytes()


def test_certificate_that_stands_is_given_again_and_anew_in_its_last_days(
    authority: Authority, clock: Clock, tmp_path: Path
) -> None:
    first = authority.sign_device(request(tmp_path), "pi-07").certificate
    assert renew_device(authority, "pi-07", request(tmp_path)) == first.pem
    clock.now += 340 * DAY
    second = renew_device(authority, "pi-07", request(tmp_path))
    assert second != first.pem
    assert renew_device(authority, "pi-07", request(tmp_path)) == second
    assert authority.folder.device("pi-07").read_bytes() == second
    assert [c.status(authority.now()) for c in authority.records.certificates()] == ["valid", "valid"]


def test_revoked_device_renews_nothing(authority: Authority, clock: Clock, tmp_path: Path) -> None:
    authority.sign_device(request(tmp_path), "pi-07")
    clock.now += 340 * DAY
    renew_device(authority, "pi-07", request(tmp_path))
    authority.revoke("pi-07")
    with pytest.raises(IdentityRefused, match="'pi-07': the certificate of this key was revoked"):
        renew_device(authority, "pi-07", request(tmp_path))
    assert len(authority.records.certificates()) == 2


def test_certificate_that_has_ended_is_not_renewed(authority: Authority, clock: Clock, tmp_path: Path) -> None:
    authority.sign_device(request(tmp_path), "pi-07")
    clock.now += 366 * DAY
    with pytest.raises(IdentityRefused, match="has ended; it is not renewed"):
        renew_device(authority, "pi-07", request(tmp_path))


def test_another_key_or_another_name_renews_nothing(authority: Authority, clock: Clock, tmp_path: Path) -> None:
    authority.sign_device(request(tmp_path), "pi-07")
    authority.sign_device(request(tmp_path / "8", "pi-08"), "pi-08")
    clock.now += 340 * DAY
    with pytest.raises(IdentityRefused, match="'pi-07': the certificate of this key was never issued"):
        renew_device(authority, "pi-07", request(tmp_path / "stranger"))
    with pytest.raises(IdentityRefused, match=r"the request is for \['pi-08'\], not for device 'pi-07'"):
        renew_device(authority, "pi-07", request(tmp_path / "8", "pi-08"))
    assert len(authority.records.certificates()) == 2


def test_desk_answers_what_an_inbox_hands_it(tmp_path: Path) -> None:
    then = datetime.datetime.now(datetime.UTC) - 340 * DAY
    with Authority.create(tmp_path / "identity", now=lambda: then) as authority:
        authority.sign_device(request(tmp_path), "pi-07")
        authority.sign_device(request(tmp_path / "8", "pi-08"), "pi-08")
        authority.revoke("pi-08")
    answers: queue.SimpleQueue[tuple[str, str, msgspec.Struct]] = queue.SimpleQueue()
    said: list[str] = []
    with RenewalHandler(tmp_path / "identity", lambda *answer: answers.put(answer), said.append) as handler:
        for device, folder in (("pi-07", tmp_path), ("pi-08", tmp_path / "8")):
            handler.handlers["renew"](device, unseal(seal("renew", Renew(request(folder, device).decode()))))
        device, kind, body = answers.get(timeout=10)
        assert (device, kind) == ("pi-07", "renewed")
        assert isinstance(body, Renewed)
        assert body.certificate.encode() == (tmp_path / "identity" / "devices" / "pi-07.pem").read_bytes()
        device, kind, error = answers.get(timeout=10)
        assert (device, kind) == ("pi-08", "error")
        assert isinstance(error, Error)
        assert (error.code, "was revoked" in error.message) == ("identity-refused", True)
    assert said[0] == "pi-07: its certificate was renewed"


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here")
def test_open_connection_goes_on_and_the_next_one_has_the_new_certificate(tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        own = make_request(tmp_path / "pi-1", "pi-1")
        files = ClientFiles(site.ca, tmp_path / "pi-1" / "device.pem", own.key, site.ca)
        with Authority(site.identity) as authority:
            old = authority.sign_device(own.request.read_bytes(), "pi-1", days=20).certificate
        files.certificate.write_bytes(old.pem)
        device, coordinator = site.connect(files, "a", *topics.device_filters("fed", "pi-1")), site.coordinator()
        with Authority(site.identity) as authority:
            files.certificate.write_bytes(renew_device(authority, "pi-1", own.request.read_bytes()))
            with authority.records.transaction():
                authority.records.revoke(old.serial, authority.now(), "old")
            authority.write_crl()
        device.transport.take_up_certificate()
        site.broker.reload()
        time.sleep(0.3)
        coordinator.transport.publish(topics.down("fed", "pi-1", "order"), b"no gap")
        device.wait_for(topics.down("fed", "pi-1", "order"))
        with socket_of(device) as open_one:
            open_one.shutdown(socket.SHUT_RDWR)
        seen: list[Event] = []
        while Connected() not in seen:  # with the old one, which the broker's list has, there were none
            seen.append(device.events.get(timeout=20))
        assert any(isinstance(event, Disconnected) for event in seen)
    finally:
        site.close()


def socket_of(client: Client) -> socket.socket:
    """The connection's plain socket, below TLS."""
    found = client.transport._client.socket()
    return socket.socket(fileno=os.dup(found.fileno()))
