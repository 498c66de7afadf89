"""Phones among the devices: the link to a run's page, the page at the door of the fleet, and what is told of them."""

from __future__ import annotations

import base64
import shutil
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.cli.device_claiming import open_door
from coordinator.cli.revocation_watch import RevocationWatch
from coordinator.fleet.book import FleetBook, FleetSettings
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import claim_key
from coordinator.identity.claims import create_token
from edge.contracts.claims import ClaimLink, KeyClaimReply, KeyClaimRequest
from edge.contracts.errors import ConfigError
from edge.contracts.signing import claim_text
from tests.cli.conftest import Command
from tests.waiting import wait_until

RUN = """
[federation]
name = "digits"
rounds = 1
[model]
build = "mlp"
[method]
name = "fedavg"
[data]
source = "digits"
[cohort]
size = 1
[runtime]
name = "onnxruntime_web"
[broker]
url = "embedded"
identity = "identity"
web = "WEB"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: an identity, and the folder of a run with its broker's."""
    monkeypatch.chdir(tmp_path)
    Authority.create(tmp_path / "identity").close()
    (tmp_path / "run.toml").write_text(RUN.replace("WEB", "https://hub.lan:8443"))
    return tmp_path


@pytest.fixture
def page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page in place of the built one, which a checkout need not have."""
    place = folder / "dist"
    place.mkdir()
    (place / "index.html").write_text("<!doctype html><title>Apportion</title>")
    monkeypatch.setattr("coordinator.web.pages.built_folder", lambda: place)
    return place


def ask(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def key_claim(token: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    public = base64.b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()
    r, s = utils.decode_dss_signature(key.sign(claim_text(token, public), ec.ECDSA(SHA256())))
    return KeyClaimRequest(
        token, public, base64.b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode()
    ).to_bytes()


def settings(folder: Path) -> FleetSettings:
    return FleetSettings(
        federation="digits", identity=str(folder / "identity"), broker="mqtts://hub:1", web_socket="ws://127.0.0.1:9"
    )


def test_link_for_a_phone_leads_to_the_page_of_the_run(folder: Path, command: Command) -> None:
    outcome = command("device", "add", "--qr", "--device", "phone-1", "--config", "run.toml", "--no-wait", "--json")
    assert outcome.status == 0, outcome.err
    link = ClaimLink.from_text(outcome.line["link"])
    assert (link.service, link.device) == ("https://hub.lan:8443", "phone-1")
    assert "On a phone: scan the code, or open the link, and press Join" in outcome.err
    assert "apportion enrol -" in outcome.err
    assert "Answered by the run whose page is at https://hub.lan:8443" in outcome.err
    again = command("device", "add", "--qr", "--device", "phone-2", "--no-wait", "--json")  # the book knows by now
    assert ClaimLink.from_text(again.line["link"]).service == "https://hub.lan:8443"


def test_machine_is_not_added_over_a_broker_that_only_the_run_reaches(folder: Path, command: Command) -> None:
    outcome = command("device", "add", "pi@127.0.0.1:9", "--config", "run.toml", "--data", "x", "--json")
    assert (outcome.status, "--broker: the fleet book does not have it yet" in outcome.error["message"]) == (2, True)


def test_link_to_this_machine_says_that_it_is_for_its_own_browsers(folder: Path, command: Command) -> None:
    (folder / "here.toml").write_text(RUN.replace("WEB", "http://localhost:8080"))
    outcome = command("device", "add", "--qr", "--device", "me", "--config", "here.toml", "--no-wait", "--json")
    assert outcome.line["link"].startswith("http://localhost:8080/join#d=me&t=")
    assert "for browsers on this machine" in outcome.err
    assert "apportion enrol" not in outcome.err


def test_door_of_the_fleet_has_the_page_and_its_browsers_are_listed_and_revoked(
    folder: Path, page: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    book = FleetBook(folder / "fleet")
    book.settle(federation="digits", identity=str(folder / "identity"), broker="mqtts://hub:1")
    book.change("phone-1", way="claim")
    with Authority(folder / "identity") as authority:
        token = create_token(authority, "phone-1", 600)
    with open_door(settings(folder), "http://127.0.0.1:0") as door:
        assert door.has_page
        assert ask(door.address, "GET", "/join")[1].startswith(b"<!doctype html>")
        status, body = ask(door.address, "POST", "/v1/claim-key", key_claim(token))
    assert (status, door.claimed) == (200, ["phone-1"])
    assert KeyClaimReply.from_bytes(body).broker == "ws://127.0.0.1:9"
    assert "phone-1: the broker does not know it yet; run: apportion ca mosquitto --out" in capsys.readouterr().err
    listed = command("device", "ls")
    assert "comes by its page  onnxruntime_web" in listed.out
    assert command("device", "ls", "--json").line["devices"][0]["browser"] is True
    revoked = command("device", "revoke", "phone-1", "--reason", "lost")
    assert "phone-1: its browser's key revoked" in revoked.out
    assert "it is a browser" in revoked.out
    assert command("device", "revoke", "phone-1", "--json").line["revoked"] == []


def test_door_without_a_built_page_still_answers_claims(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_built() -> Path:
        raise ConfigError(["the page for phones is not built"], hint="make web")

    monkeypatch.setattr("coordinator.web.pages.built_folder", not_built)
    with open_door(settings(folder), "https://localhost:0") as door:
        assert not door.has_page
    assert "no page for phones: the page for phones is not built; make web" in capsys.readouterr().err


def test_doctor_tells_what_a_page_lacks(folder: Path, page: Path, command: Command) -> None:
    def found(outcome: dict[str, list[dict[str, str]]]) -> dict[str, tuple[str, str]]:
        return {f["name"]: (f["state"], f["fix"]) for f in outcome["findings"]}

    findings = found(command("doctor", "run.toml", "--json").line)
    assert findings["page for phones"] == ("ok", "")
    state, fix = findings["certificate"]
    assert (state, fix.startswith("apportion ca issue-server --name hub.lan")) == ("fail", True)
    with Authority(folder / "identity") as authority:
        authority.issue_server(["hub.lan"])
    shutil.rmtree(page)
    findings = found(command("doctor", "run.toml", "--json").line)
    assert findings["certificate"] == ("ok", "")
    assert findings["page for phones"][0] == "fail"


def test_revocation_by_another_command_reaches_the_broker_of_a_run(folder: Path, command: Command) -> None:
    with Authority(folder / "identity") as authority:
        asked = KeyClaimRequest.from_bytes(key_claim(create_token(authority, "phone-1", 600)))
        told: list[float] = []
        with RevocationWatch(folder / "identity", lambda: told.append(time.monotonic()), every_s=0.05):
            create_token(authority, "phone-2", 600)  # changes the record, and nobody's access
            time.sleep(0.3)
            assert told == []
            claim_key(authority, asked.token, asked.public_key, asked.proof)
            wait_until(lambda: len(told) == 1)
            command("device", "add", "--qr", "--device", "x", "--config", "run.toml", "--no-wait")
            revoked = command("device", "revoke", "phone-1")
            wait_until(lambda: len(told) == 2)
    assert "the run with the page at https://hub.lan:8443 tells its own within seconds" in revoked.out


@pytest.mark.slow
def test_plan_shows_the_runtime_of_browsers(folder: Path, command: Command) -> None:
    assert "on onnxruntime_web" in command("plan", "run.toml", "--device", "pi-4-2gb").out
