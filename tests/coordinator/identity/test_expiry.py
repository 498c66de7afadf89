"""What runs out is told before it does, each with what to do, and nothing is told of what has a successor or is out."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.identity.authority import Authority
from coordinator.identity.expiry import endings
from coordinator.identity.issuers import OfflineRoot
from edge.identity.device_identity import make_request
from tests.coordinator.identity.test_authority import Clock

DAY = datetime.timedelta(days=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Iterator[Authority]:
    root = OfflineRoot(tmp_path / "root", "a long passphrase")
    with Authority.create(tmp_path / "identity", offline_root=root, now=clock) as made:
        made.issue_server(["broker.local", "10.0.0.2"], days=825)
        made.issue_coordinator("digits", days=400)
        made.sign_device(make_request(tmp_path / "pi-07", "pi-07").request.read_bytes(), "pi-07", days=365)
        yield made


def told(authority: Authority, days: float = 21) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.name, one.has_ended) for one in endings(authority, days)]


def test_nothing_is_told_of_a_new_identity(authority: Authority) -> None:
    assert told(authority) == []


def test_each_is_told_of_in_turn_before_its_end_and_after_it(authority: Authority, clock: Clock) -> None:
    clock.now += 24 * DAY  # the list's 30 days
    assert told(authority) == [("revocation list", "", False)]
    authority.write_crl(days=3650)
    clock.now += (365 - 24 - 20) * DAY
    assert told(authority) == [("device", "pi-07", False)]
    clock.now += 21 * DAY
    assert told(authority) == [("device", "pi-07", True)]
    assert told(authority, 40) == [("device", "pi-07", True), ("coordinator", "@digits", False)]
    clock.now += (730 - 366 - 1) * DAY
    assert told(authority)[2:] == [("issuer", "", False), ("server", "broker.local", False)]


def test_remedies_are_commands_for_what_they_are_of(authority: Authority, clock: Clock) -> None:
    clock.now += 3650 * DAY
    remedies = {one.kind: one.remedy for one in endings(authority)}
    assert "apportion ca init" in remedies["root"]
    assert "apportion ca rotate --offline-root" in remedies["issuer"]
    assert "apportion ca crl" in remedies["revocation list"]
    assert "apportion ca issue-server --name broker.local --name 10.0.0.2;" in remedies["server"]
    assert "apportion ca issue-coordinator digits;" in remedies["coordinator"]
    assert "apportion ca revoke pi-07" in remedies["device"]


def test_successor_or_revocation_ends_the_telling(authority: Authority, clock: Clock, tmp_path: Path) -> None:
    clock.now += 350 * DAY
    authority.write_crl()
    assert told(authority) == [("device", "pi-07", False)]
    request = make_request(tmp_path / "pi-07", "pi-07").request.read_bytes()
    assert authority.sign_device(request, "pi-07").is_new
    assert told(authority) == []
    clock.now += 300 * DAY
    authority.write_crl()
    authority.issue_coordinator("digits")
    assert ("device", "pi-07", False) in told(authority, 100)
    authority.revoke("pi-07")
    assert [one for one in told(authority, 100) if one[0] == "device"] == []


def test_root_in_the_folder_is_its_own_issuer_and_told_once(tmp_path: Path, clock: Clock) -> None:
    with Authority.create(tmp_path / "other", days=10, now=clock) as authority:
        assert told(authority) == [("root", "", False)]
