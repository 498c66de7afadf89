"""Certificates of a foreign authority for page and browsers' messages: which are good, and who is shown them."""

from __future__ import annotations

import datetime
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from msgspec.structs import replace
from starlette.applications import Starlette

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import write_broker_folder
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerAddress, open_broker
from coordinator.cli.page_findings import page_findings
from coordinator.cli.page_serving import open_page, page_files, web_listener
from coordinator.config.run_config import BrokerConfig
from coordinator.fleet.claim_link import claim_link, root_fingerprint
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from coordinator.identity.web_certificate import read_web_certificate
from coordinator.web.server import WebServer
from edge.contracts.errors import IdentityRefused
from tests.cli.conftest import Command
from tests.coordinator.run_file.test_loading import SMALL, parse

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Foreign:
    """An authority with a middle one, as public ones have, and the files it issues."""

    folder: Path
    root: trustme.CA
    middle: trustme.CA

    def issue(self, *names: str, days: float = 90.0, label: str = "own") -> tuple[Path, Path]:
        """Full chain and key for ``names``."""
        end = datetime.datetime.now(datetime.UTC) + days * DAY
        issued = self.middle.issue_cert(*names, not_after=end, not_before=end - 90 * DAY)
        chain, key = self.folder / f"{label}-fullchain.pem", self.folder / f"{label}-privkey.pem"
        chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return chain, key

    def shown_at(self, host: str, port: int) -> str:
        """Who issued what a client is shown that trusts this root alone, and knows no middle one by itself."""
        context = ssl.create_default_context()
        self.root.configure_trust(context)
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            with context.wrap_socket(plain, server_hostname=host) as client:
                shown = client.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).issuer.rfc4514_string()


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    root = trustme.CA(organization_name="A public root")
    return Foreign(tmp_path, root, trustme.CA(parent_cert=root, organization_name="A public one in the middle"))


def broker(identity: Path, chain: Path, key: Path, url: str = "mosquitto") -> BrokerConfig:
    return BrokerConfig(
        url=url, identity=str(identity), web="https://localhost:1", web_certificate=str(chain), web_key=str(key)
    )


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (("phones.example.org",), "Phones.example.org"),
        (("other.example.org", "*.example.org"), "phones.example.org"),
        (("10.0.0.7",), "10.0.0.7"),
        (("fd00::7",), "fd00:0::7"),
        (("phones.example.org",), ""),
    ],
)
def test_certificate_that_browsers_would_take_is_good(foreign: Foreign, names: tuple[str, ...], host: str) -> None:
    chain, key = foreign.issue(*names)
    found = read_web_certificate(chain, key, host)
    assert (found.certificate, found.key, found.warning()) == (chain, key, "")


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (("example.org",), "phones.example.org"),
        (("*.example.org",), "example.org"),
        (("*.example.org",), "a.phones.example.org"),
        (("10.0.0.7",), "10.0.0.8"),
    ],
)
def test_host_that_is_not_in_the_certificate_is_told_with_those_that_are(
    foreign: Foreign, names: tuple[str, ...], host: str
) -> None:
    chain, key = foreign.issue(*names)
    with pytest.raises(IdentityRefused, match=rf"fullchain\.pem is for .*, not for '{host}'") as caught:
        read_web_certificate(chain, key, host)
    assert names[0] in str(caught.value)
    assert "$.broker.web" in caught.value.hint


def test_files_that_do_not_belong_together_or_hold_something_else_are_named(foreign: Foreign, tmp_path: Path) -> None:
    chain, key = foreign.issue("localhost")
    other, other_key = foreign.issue("localhost", label="other")
    with pytest.raises(IdentityRefused, match=r"other-privkey\.pem is not the key of .*own-fullchain\.pem"):
        read_web_certificate(chain, other_key, "localhost")
    other.write_bytes(foreign.middle.cert_pem.bytes() + chain.read_bytes())
    with pytest.raises(IdentityRefused, match="is not the key of") as caught:
        read_web_certificate(other, key, "localhost")
    assert "first in its file" in caught.value.hint
    with pytest.raises(IdentityRefused, match=r"privkey\.pem holds no usable certificate") as caught:
        read_web_certificate(key, key, "localhost")
    assert "fullchain.pem" in caught.value.hint
    with pytest.raises(IdentityRefused, match=r"fullchain\.pem holds no private key"):
        read_web_certificate(chain, chain, "localhost")
    with pytest.raises(IdentityRefused, match=r"gone\.pem cannot be read: No such file") as caught:
        read_web_certificate(chain, tmp_path / "gone.pem", "localhost")
    assert "mode 600" in caught.value.hint


def test_certificate_out_of_its_time_is_refused_and_one_at_its_end_is_warned_of(foreign: Foreign) -> None:
    with pytest.raises(IdentityRefused, match=r"own-fullchain\.pem ran out on 20\d\d-") as caught:
        read_web_certificate(*foreign.issue("localhost", days=-1), "localhost")
    assert "renew" in caught.value.hint
    with pytest.raises(IdentityRefused, match=r"own-fullchain\.pem is good from 20\d\d-"):
        read_web_certificate(*foreign.issue("localhost", days=100), "localhost")
    assert "in 12 days: renew it" in read_web_certificate(*foreign.issue("localhost", days=13), "localhost").warning()
    assert read_web_certificate(*foreign.issue("localhost", days=15), "localhost").warning() == ""


def test_page_has_the_whole_chain_and_asks_for_none_of_the_identity(foreign: Foreign, tmp_path: Path) -> None:
    Authority.create(tmp_path / "identity").close()
    config = replace(
        broker(tmp_path / "identity", *foreign.issue("phones.example.org")), web="https://phones.example.org:1"
    )
    with WebServer("https://localhost:0", Starlette(), *page_files(config)) as server:
        issuer = foreign.shown_at("phones.example.org", int(server.address.rsplit(":", 1)[1]))
    assert "A public one in the middle" in issuer
    with Authority(tmp_path / "identity") as authority:
        assert authority.records.certificates("server") == []


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_browsers_messages_have_the_pages_certificate(kind: str, foreign: Foreign, tmp_path: Path) -> None:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    Authority.create(tmp_path / "identity").close()
    config = broker(tmp_path / "identity", *foreign.issue("localhost"), url=kind)
    listener = web_listener(config)
    with open_broker(config, tmp_path / "broker", federation="fed", web_socket=listener) as address:
        port = int(address.web_socket.rsplit(":", 1)[1])
        assert "A public one in the middle" in foreign.shown_at("localhost", port)


def test_run_refuses_what_it_cannot_serve_and_warns_of_what_runs_out(
    foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr("coordinator.web.pages.built_folder", lambda: tmp_path)
    Authority.create(tmp_path / "identity").close()
    config, said = broker(tmp_path / "identity", *foreign.issue("elsewhere.example")), list[str]()
    address, blobs = BrokerAddress(kind="external", url="mqtts://hub:8883"), BlobStore(tmp_path / "blobs")
    refusal = "is for elsewhere.example, not for 'localhost'"
    with pytest.raises(IdentityRefused, match=refusal):
        web_listener(config)
    with pytest.raises(IdentityRefused, match=refusal), open_page(config, "f", blobs, address, said.append):
        pass
    foreign.issue("localhost", days=3.5)
    config = replace(config, web="https://localhost:0")
    with open_page(config, "f", blobs, address, said.append) as page:
        assert page is not None
        assert "in the middle" in foreign.shown_at("localhost", int(page.address.rsplit(":", 1)[1]))
    assert len(said) == 1
    assert "in 3 days" in said[0]
    (finding,) = [f for f in page_findings(replace(parse(SMALL), broker=config)) if f.name == "certificate"]
    assert (finding.state, finding.detail) == ("warn", said[0])


def test_python_agent_keeps_to_the_links_pin_and_sends_no_token(
    foreign: Foreign, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr("coordinator.web.pages.built_folder", lambda: tmp_path)
    identity, out = tmp_path / "identity", tmp_path / "pi-1"
    with Authority.create(identity) as authority:
        token, pin = create_token(authority, "pi-1", 600), root_fingerprint(authority.folder.ca.read_bytes())
    config = replace(broker(identity, *foreign.issue("localhost")), web="https://localhost:0")
    address, blobs = BrokerAddress(kind="external", url="mqtts://hub:8883"), BlobStore(tmp_path / "blobs")
    with open_page(config, "f", blobs, address, lambda line: None) as page:
        assert page is not None
        refused = command("enrol", claim_link(page.address, token, pin, "pi-1"), "--out", str(out), "--json")
    assert refused.error["code"] == "wrong-server"
    assert not out.exists()


def test_broker_elsewhere_is_given_copies_for_its_listener(foreign: Foreign, tmp_path: Path, command: Command) -> None:
    identity, out = tmp_path / "identity", tmp_path / "out"
    with Authority.create(identity) as authority:
        authority.issue_server(["broker.local"])
    chain, key = foreign.issue("phones.example.org")
    where = ("ca", "mosquitto", "--dir", str(identity), "--out", str(out), "--at", "/etc/broker")
    files = ("--web-certificate", str(chain), "--web-key", str(key))
    assert command(*where, *files).status == 2
    assert command(*where, "--web-socket-port", "8084", *files[:2]).status == 2
    assert not out.exists()
    assert command(*where, "--web-socket-port", "8084", *files).status == 0
    _, agents, browsers = (out / "mosquitto.conf").read_text().split("listener ")
    assert "certfile /etc/broker/web.pem\nkeyfile /etc/broker/web.key\n" in browsers
    assert "certfile /etc/broker/server.pem\nkeyfile /etc/broker/server.key\n" in agents
    assert (out / "web.pem").read_bytes() == chain.read_bytes()
    assert (out / "web.key").read_bytes() == key.read_bytes()
    assert (out / "web.key").stat().st_mode & 0o777 == 0o600
    write_broker_folder(identity, out, web_socket_port=8084)
    assert not (out / "web.key").exists()
    assert "web.key" not in (out / "mosquitto.conf").read_text()
