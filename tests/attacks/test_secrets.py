"""What must stay secret is in nothing that a run writes or says: folders, ledger, logs, reports, terminal."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from edge.__main__ import main
from tests.federation.small_run import config_text

pytestmark = [
    pytest.mark.broker,
    pytest.mark.runtime,
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)"),
]


def forms(secret: bytes) -> Iterator[bytes]:
    """``secret`` as it is and as it is usually written down."""
    yield secret
    yield secret.hex().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(secret).rstrip(b"=")


def holding(folder: Path, secret: bytes) -> list[Path]:
    """The files below ``folder`` that hold ``secret`` in one of its forms."""
    wanted = list(forms(secret))
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(form in path.read_bytes() for form in wanted)]


def private_keys(folder: Path) -> list[bytes]:
    """A line from the middle of every private key below ``folder``."""
    return [path.read_bytes().splitlines()[1] for path in sorted(folder.rglob("*.key"))]


def run(folder: Path, broker: str, capfd: pytest.CaptureFixture[str]) -> bytes:
    """All that a run of one round printed; its folder is ``folder/run``."""
    (folder / "run.toml").write_text(config_text(broker=broker, rounds=1, local=2, size=2))
    status = main(["run", str(folder / "run.toml"), "--run-dir", str(folder / "run"), "--json"])
    printed = capfd.readouterr()
    assert status == 0, printed.err
    return (printed.out + printed.err).encode()


def test_password_of_a_broker_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    password = secrets.token_urlsafe(24)
    broker = BrokerProcess("mosquitto", tmp_path / "broker", user="someone", password=password)
    broker.start()
    try:
        monkeypatch.setenv("APPORTION_TEST_PASSWORD", password)
        address = broker.address.url
        printed = run(tmp_path, f'url = "{address}"\nuser = "someone"\npassword-env = "APPORTION_TEST_PASSWORD"', capfd)
    finally:
        broker.stop()
    assert holding(tmp_path / "run", b"someone") != []  # the search finds what is there
    assert holding(tmp_path / "run", password.encode()) == []
    assert not any(form in printed for form in forms(password.encode()))


def test_keys_and_tokens_of_an_identity_are_not_in_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        token = create_token(authority, "pi-late", 600)
    printed = run(tmp_path, f'url = "mosquitto"\nidentity = "{tmp_path}/identity"', capfd)
    keys = private_keys(tmp_path / "identity")
    assert len(keys) >= 6  # root, signing, coordinator, broker, two devices
    for secret in [*keys, token.encode(), token.partition(".")[2].encode()]:
        assert holding(tmp_path / "run", secret) == []
        assert secret not in printed
    assert holding(tmp_path / "identity", token.partition(".")[2].encode()) == []  # kept as a hash


def test_what_a_run_keeps_for_its_own_broker_is_for_its_owner_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A broker that a run starts is found again after a crash: its password and key are in its folder, 0600."""
    run(tmp_path, 'url = "mosquitto"\ntls = true', capfd)
    folder = tmp_path / "run" / "broker"
    keys = [path for path in folder.iterdir() if b"PRIVATE KEY" in path.read_bytes() or "password" in path.read_text()]
    assert keys
    assert {path.stat().st_mode & 0o077 for path in keys if path.name != "mosquitto.conf"} == {0}
    elsewhere = [path for secret in private_keys(folder) for path in holding(tmp_path / "run", secret)]
    assert {path.parent for path in elsewhere} == {folder}
