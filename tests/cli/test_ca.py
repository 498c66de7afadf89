"""``apportion ca`` and ``apportion csr``: from an empty folder to a revoked device, and what each refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.__main__ import main
from tests.cli.conftest import Command
from tests.coordinator.identity.browser_device import BrowserDevice


@pytest.fixture
def identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> Path:
    monkeypatch.chdir(tmp_path)
    assert command("ca", "init").status == 0
    return tmp_path / "identity"


def test_device_from_request_to_revocation(identity: Path, command: Command) -> None:
    made = command("csr", "--device", "pi-07", "--out", "device", "--json").line
    assert (made["schema"], made["ok"], made["request"]) == ("apportion.csr/1", True, "device/device.csr")
    signed = command("ca", "sign", made["request"], "--device", "pi-07", "--json").line
    assert (signed["schema"], signed["is_new"], signed["key"]) == ("apportion.ca/1", True, None)
    assert Path(signed["certificate"]).read_text().startswith("-----BEGIN CERTIFICATE-----")
    assert command("ca", "sign", made["request"], "--device", "pi-07", "--json").line["is_new"] is False
    listed = command("ca", "ls", "--json").line
    assert [(row["name"], row["status"]) for row in listed["certificates"]] == [("pi-07", "valid")]
    assert command("ca", "revoke", "pi-07", "--json").line["revoked"] == [signed["serial"]]
    assert command("ca", "revoke", "pi-07", "--json").line["revoked"] == []
    assert command("ca", "ls", "--json").line["certificates"][0]["status"] == "revoked"
    assert "revoked" in command("ca", "ls").out


def test_server_coordinator_token_and_list(identity: Path, command: Command) -> None:
    server = command("ca", "issue-server", "--name", "broker.local", "--name", "10.0.0.2", "--json").line
    assert (server["kind"], server["key"]) == ("server", "identity/server/broker.local.key")
    other = command("ca", "issue-server", "--name", "broker.local", "--json")
    assert (other.status, other.error["code"]) == (2, "identity-refused")
    assert "--replace" in other.error["hint"]
    assert command("ca", "issue-server", "--name", "broker.local", "--replace", "--json").line["is_new"] is True
    assert command("ca", "issue-coordinator", "digits", "--json").line["name"] == "@digits"
    token = command("ca", "token", "pi-08", "--expires", "30m", "--json").line
    assert (token["device"], len(token["token"])) == ("pi-08", 60)
    assert command("ca", "crl", "--days", "7", "--json").line["next_update"].endswith("Z")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["init", "identity"], "identity-refused", "not empty"),
        (["init", "other", "--name", "a\nb"], "bad-config", "--name"),
        (["ls", "--dir", "nowhere"], "identity-refused", "nowhere holds no identity"),
        (["sign", "none.csr", "--device", "x"], "bad-config", "none.csr"),
        (["token", "pi-08", "--expires", "soon"], "identity-refused", "'soon' is not a time"),
        (["token", "a/b"], "identity-refused", "device id 'a/b'"),
        (["revoke", "pi-99"], "identity-refused", "pi-99"),
        (["issue-server", "--name", "a b"], "identity-refused", "'a b'"),
    ],
)
def test_bad_arguments_are_exit_2_with_the_value(
    identity: Path, command: Command, arguments: list[str], code: str, words: str
) -> None:
    outcome = command("ca", *arguments, "--json")
    assert outcome.status == 2
    assert outcome.error["code"] == code
    assert words in outcome.error["message"]


def test_csr_failures_are_one_line_and_exit_2_or_1(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = command("csr", "--device", "a/b", "--out", tmp_path / "d", "--json")
    assert (bad.status, bad.error["code"]) == (2, "bad-config")
    (tmp_path / "file").write_text("")
    blocked = command("csr", "--device", "a", "--out", tmp_path / "file", "--json")
    assert (blocked.status, blocked.error["code"]) == (1, "system")
    assert main(["csr"]) == 2
    assert "--device" in capsys.readouterr().err


def test_mosquitto_folder_is_written_and_says_what_is_missing(identity: Path, command: Command) -> None:
    missing = command("ca", "mosquitto", "--out", "broker", "--json")
    assert (missing.status, missing.error["code"]) == (2, "identity-refused")
    assert "apportion ca issue-server" in missing.error["hint"]
    assert command("ca", "issue-server", "--name", "broker.local").status == 0
    written = command("ca", "mosquitto", "--out", "broker", "--port", "8884", "--at", "/etc/b", "--json").line
    lines = Path(written["config"]).read_text().splitlines()
    assert lines[0] == "listener 8884"
    assert {"require_certificate true", "use_identity_as_username true", "acl_file /etc/b/access"} <= set(lines)
    assert command("ca", "mosquitto", "--out", "broker", "--bind", "a b", "--json").error["code"] == "identity-refused"


def test_device_in_a_browser_is_listed_given_to_the_broker_and_revoked(identity: Path, command: Command) -> None:
    BrowserDevice("phone-1").enrol(identity)
    assert command("ca", "issue-server", "--name", "broker.local").status == 0
    (row,) = command("ca", "ls", "--json").line["browsers"]
    assert (row["name"], row["status"], row["serial"][:4]) == ("phone-1", "valid", "key-")
    assert "browser      phone-1" in command("ca", "ls").out
    same = command("ca", "mosquitto", "--out", "broker", "--web-socket-port", "8883", "--json")
    assert (same.status, same.error["code"]) == (2, "bad-config")
    written = command("ca", "mosquitto", "--out", "broker", "--web-socket-port", "8084", "--json").line
    assert "\nlistener 8084\nmax_connections 11100\nprotocol websockets\n" in Path(written["config"]).read_text()
    assert Path("broker/passwords").read_text().startswith("phone-1:$7$101$")
    assert command("ca", "revoke", "phone-1", "--json").line["revoked"] == [row["serial"]]
    assert command("ca", "ls", "--json").line["browsers"][0]["status"] == "revoked"
    assert "browser's key" not in command("ca", "revoke", "phone-1").out
    assert command("ca", "mosquitto", "--out", "broker", "--web-socket-port", "8084").status == 0
    assert Path("broker/passwords").read_text() == ""


def test_listing_tells_what_ends_soon_and_its_check_is_exit_1(identity: Path, command: Command) -> None:
    command("csr", "--device", "pi-07", "--out", "device")
    command("ca", "sign", "device/device.csr", "--device", "pi-07")
    assert command("ca", "ls", "--check", "--json").line["ending"] == []
    found = command("ca", "ls", "--within", "370", "--check", "--json")
    assert (found.status, found.error["code"]) == (1, "ending")
    assert [(one["kind"], one["name"]) for one in found.line["ending"]] == [("device", "pi-07")]
    told = command("ca", "ls", "--within", "370")
    assert told.status == 0
    assert "device 'pi-07' ends " in told.out
    assert "next: its agent renews it" in told.out


def test_signing_key_is_changed_in_two_steps_and_browsers_are_named(identity: Path, command: Command) -> None:
    BrowserDevice("phone-1").enrol(identity)
    before = (identity / "signing.pub").read_text()
    early = command("ca", "signing-key", "retire", "--json")
    assert (early.status, early.error["code"]) == (2, "identity-refused")
    new = command("ca", "signing-key", "new", "--json").line
    assert (new["number"], len(new["keys"]), new["not_following"]) == (1, 2, ["phone-1"])
    assert (identity / "signing.pub").read_text().startswith(before)
    retired = command("ca", "signing-key", "retire")
    assert "phone-1" in retired.out
    assert "PUBLIC KEY" in (identity / "signing.pub").read_text()
    assert before not in (identity / "signing.pub").read_text()
