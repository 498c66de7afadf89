"""``apportion ca init --offline-root`` and ``apportion ca rotate``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

PASSPHRASE = "a long passphrase"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APPORTION_ROOT_PASSPHRASE", PASSPHRASE)


def test_issuing_certificate_is_made_and_changed(command: Command) -> None:
    made = command("ca", "init", "--offline-root", "root", "--json").line
    assert made["issuer_not_after"] < made["not_after"]
    told = command("ca", "rotate", "--offline-root", "root")
    assert told.status == 0
    assert "issuing certificate 2" in told.out
    assert "they trust the root" in told.out
    listed = command("ca", "ls", "--json").line
    assert listed["issuer_not_after"] >= made["issuer_not_after"]
    keys = sorted(Path("identity/issuers").glob("*.key"))
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600, 0o600]


def test_wrong_passphrase_changes_nothing_and_is_not_repeated(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("ca", "init", "--offline-root", "root")
    monkeypatch.setenv("APPORTION_ROOT_PASSPHRASE", "wrong passphrase")
    told = command("ca", "rotate", "--offline-root", "root")
    assert told.status == 2
    assert "cannot be opened" in told.err
    assert "wrong passphrase" not in told.err + told.out
    assert len(list(Path("identity/issuers").glob("*.pem"))) == 1


def test_passphrase_is_not_asked_where_nobody_can_answer(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPORTION_ROOT_PASSPHRASE")
    with open("/dev/null") as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        told = command("ca", "init", "--offline-root", "root")
    assert told.status == 2
    assert "taken from APPORTION_ROOT_PASSPHRASE" in told.err
    assert not Path("identity").exists()


def test_root_that_is_here_cannot_be_rotated(command: Command) -> None:
    command("ca", "init")
    told = command("ca", "rotate", "--offline-root", "root")
    assert told.status == 2
    assert "has its root's key itself" in told.err
