"""A run with the page for phones: the page is there while the run is, and who joins is let in at the broker at once."""

from __future__ import annotations

import base64
import json
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.blobs.blob_store import BlobStore
from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.cli.page_serving import PageService
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import claim_key
from coordinator.identity.claims import create_token
from coordinator.run_file.loading import load_config_text
from coordinator.web.blobs import Blobs
from coordinator.web.tickets import Tickets
from edge.contracts.claims import KeyClaimReply, KeyClaimRequest
from edge.contracts.signing import claim_text
from tests.federation.small_run import config_text

pytestmark = pytest.mark.runtime


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers["Content-Security-Policy"]
    connection.close()
    return found


def key_claim(token: str) -> KeyClaimRequest:
    key = ec.generate_private_key(ec.SECP256R1())
    public = base64.b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()
    r, s = utils.decode_dss_signature(key.sign(claim_text(token, public), ec.ECDSA(SHA256())))
    proof = base64.b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode()
    return KeyClaimRequest(token, public, proof)


def claim(port: int, token: str) -> KeyClaimReply:
    status, body, _ = ask(port, "POST", "/v1/claim-key", key_claim(token).to_bytes())
    assert status == 200, body
    return KeyClaimReply.from_bytes(body)


@pytest.mark.slow
def test_page_is_served_beside_the_run_at_the_same_port_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        token = create_token(authority, "phone-1", 600)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr("coordinator.web.pages.built_folder", lambda: tmp_path / "dist")
    port = free_port()
    broker = f'url = "embedded"\nidentity = "{tmp_path / "identity"}"\nweb = "http://127.0.0.1:{port}"'
    text = config_text(broker=broker, local=1, size=1, rounds=1)
    replies: list[KeyClaimReply] = []

    class Stop(Exception):
        """The run ends here, to be resumed."""

    def look(point: str) -> None:
        if point == "planned" and not replies:
            assert ask(port, "GET", "/join")[1] == b"<!doctype html>"
            replies.append(claim(port, token))
            policy = ask(port, "GET", "/")[2]
            assert f"connect-src 'self' {replies[0].broker};" in policy
            raise Stop

    with pytest.raises(Stop):
        start_run(load_config_text(text), tmp_path / "run", RunOptions(quiet=True, on_point=look))
    (reply,) = replies
    assert (reply.device, reply.federation) == ("phone-1", "small")
    assert reply.broker.startswith("ws://127.0.0.1:")
    served_again: list[int] = []
    options = RunOptions(quiet=True, on_point=lambda point: served_again.append(ask(port, "GET", "/healthz")[0]))
    resume_run(tmp_path / "run", options)
    assert set(served_again) == {200}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 1
    with Authority(tmp_path / "identity") as authority:
        assert authority.records.standing_browser("phone-1") is not None


def test_blobs_of_the_page_are_for_browsers_alone(tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        asked = key_claim(create_token(authority, "phone-1", 600))
        claim_key(authority, asked.token, asked.public_key, asked.proof)
    tickets = Tickets()
    service = PageService(
        "https://hub:8443", tickets, tmp_path / "identity", Blobs(BlobStore(tmp_path / "blobs"), tickets)
    )
    assert service.url_for("pi-1", 60) == ""
    url = service.url_for("phone-1", 60)
    assert url.startswith("https://hub:8443/v1/phone-1.")
    assert tickets.opened(url.removeprefix("https://hub:8443") + "a" * 64) == ("phone-1", "a" * 64)
