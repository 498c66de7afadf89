"""``apportion enrol``: a link becomes a certificate; a refusal leaves the device as it was, and its token unsent."""

from __future__ import annotations

import datetime
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from coordinator.brokers.broker_files import server_files
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.fleet.claim_link import claim_link, root_fingerprint
from coordinator.fleet.rate_limit import RateLimit
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from coordinator.web.app import web_application
from coordinator.web.device_services import claim_server
from coordinator.web.server import WebServer
from edge.__main__ import main
from edge.contracts.claims import CLAIM_PATH, ClaimLink
from edge.identity.claim_client import EnrolmentFailed
from edge.identity.device_identity import make_request
from edge.identity.enrolment import enrol as enrol_here
from edge.identity.trust import Trust
from edge.transport.broker_address import parse_broker

FILES = {"ca.pem", "device.csr", "device.key", "device.pem", "enrolment.json", "signing.pub"}


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "identity"
    Authority.create(folder).close()
    return folder


@pytest.fixture(scope="module")
def server(identity: Path) -> Iterator[WebServer]:
    limit = RateLimit((1000, 1.0), (1000, 1.0))
    service = ClaimHandler(identity, federation="digits", broker="mqtts://broker.local", limit=limit)
    with claim_server(identity, "https://localhost:0", service) as server:
        yield server


def invite(identity: Path, address: str, device: str, *, named: bool = True) -> str:
    with Authority(identity) as authority:
        token = create_token(authority, device, 3600)
    return claim_link(address, token, root_fingerprint((identity / "ca.pem").read_bytes()), device if named else "")


def token_of(link: str) -> str:
    return link.partition("t=")[2].partition("&")[0]


class Told:
    """What a run of the command said: exit status, its JSON line, what went to stderr."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.err = status, err
        self.values = json.loads(out.splitlines()[-1])

    @property
    def error(self) -> dict[str, str]:
        assert self.values["ok"] is False
        return self.values["error"]


@pytest.fixture
def enrol(capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str) -> Told:
        status = main(["enrol", *arguments, "--json"])
        said = capsys.readouterr()
        return Told(status, said.out, said.err)

    return run


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_enrol_writes_what_the_agent_needs(server: WebServer, identity: Path, tmp_path: Path, enrol) -> None:
    out = tmp_path / "new" / "identity"
    told = enrol(invite(identity, server.address, "pi-01"), "--out", str(out))
    assert told.status == 0, told.err
    assert (told.values["schema"], told.values["is_new"]) == ("apportion.enrol/1", True)
    assert set(snapshot(out)) == FILES
    assert (out / "device.key").stat().st_mode & 0o777 == 0o600
    assert told.values["agent_command"].startswith(
        "apportion agent --broker mqtts://broker.local --federation digits --device pi-01 --data DATA --ca "
    )
    for flag, name in (
        ("--cert", "device.pem"),
        ("--key", "device.key"),
        ("--trust", "signing.pub"),
        ("--ca", "ca.pem"),
    ):
        assert f"{flag} {out / name}" in told.values["agent_command"]
    # The agent takes them.
    Trust.load(out / "signing.pub")
    parse_broker("mqtts://broker.local", ca=out / "ca.pem", certificate=out / "device.pem", key=out / "device.key")
    context = ssl.create_default_context(cafile=str(out / "ca.pem"))
    context.load_cert_chain(out / "device.pem", out / "device.key")


def test_enrol_for_people_ends_with_the_agents_command(
    server: WebServer, identity: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = invite(identity, server.address, "pi-02")
    assert main(["enrol", link, "--out", str(tmp_path / "identity")]) == 0
    first = capsys.readouterr()
    assert "'pi-02' is enrolled until 20" in first.out
    assert first.out.splitlines()[-1].startswith("apportion agent --broker")
    assert main(["enrol", link, "--out", str(tmp_path / "identity")]) == 0
    assert "was enrolled before" in (again := capsys.readouterr().out)
    assert "nothing was changed" in again
    assert again.splitlines()[-1] == first.out.splitlines()[-1]


def test_second_enrol_changes_nothing_and_asks_nobody(identity: Path, tmp_path: Path, enrol) -> None:
    with claim_server(identity, "https://localhost:0", ClaimHandler(identity)) as gone:
        link = invite(identity, gone.address, "pi-03")
        assert enrol(link, "--out", str(tmp_path / "i")).status == 0
    before = snapshot(tmp_path / "i")
    again = enrol(link, "--out", str(tmp_path / "i"))
    assert (again.status, again.values["is_new"]) == (0, False)
    assert snapshot(tmp_path / "i") == before


def test_link_may_come_from_stdin_and_the_name_from_an_option(
    server: WebServer, identity: Path, tmp_path: Path, enrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = invite(identity, server.address, "pi-04", named=False)
    refused = enrol(link, "--out", str(tmp_path / "i"))
    assert (refused.status, refused.error["code"]) == (2, "bad-config")
    assert "--device ID" in refused.error["hint"]
    monkeypatch.setattr("sys.stdin", io.StringIO(link + "\n"))
    assert enrol("-", "--device", "pi-04", "--out", str(tmp_path / "i")).status == 0


@pytest.mark.parametrize("had_files", [False, True])
def test_used_token_leaves_the_device_as_it_was(
    server: WebServer, identity: Path, tmp_path: Path, enrol, had_files: bool
) -> None:
    device = f"pi-05-{had_files}"
    link = invite(identity, server.address, device)
    assert enrol(link, "--out", str(tmp_path / "first")).status == 0
    out = tmp_path / "deep" / "second"
    if had_files:
        make_request(out, device)
    before = snapshot(out)
    told = enrol(link, "--out", str(out))
    assert (told.status, told.error["code"]) == (3, "token-used")
    assert f"the claim token for '{device}' was used 20" in told.error["message"]
    assert f"apportion ca revoke {device}" in told.error["hint"]
    assert snapshot(out) == before
    assert out.exists() == had_files
    assert (tmp_path / "deep").exists() == had_files
    assert token_of(link) not in told.err


def test_unknown_token_and_another_devices_are_refused(
    server: WebServer, identity: Path, tmp_path: Path, enrol
) -> None:
    link = invite(identity, server.address, "pi-06")
    token = token_of(link)
    wrong = link.replace(token, token[:-1] + ("A" if token[-1] != "A" else "B"))
    assert enrol(wrong, "--out", str(tmp_path / "i")).error["code"] == "no-such-token"
    other = enrol(link.replace("d=pi-06", "d=pi-99"), "--out", str(tmp_path / "i"))
    assert (other.status, other.error["code"]) == (3, "identity-refused")
    assert "not for device 'pi-06'" in other.error["message"]
    both = enrol(link, "--device", "pi-99", "--out", str(tmp_path / "i"))
    assert "is 'pi-99', the link is for 'pi-06'" in both.error["message"]
    assert not (tmp_path / "i").exists()
    assert enrol(link, "--out", str(tmp_path / "i")).status == 0


class Listener:
    """A service that answers nothing and keeps what it was sent."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.seen: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.seen.append((request.url.path, await request.body()))
        body = self.root if request.method == "GET" else b"{}"
        await Response(body, headers={"Connection": "close"})(scope, receive, send)


def listen(listener: Listener, identity: Path) -> WebServer:
    return WebServer("https://localhost:0", listener, *server_files(identity, "localhost"))


def test_someone_elses_server_gets_no_token(identity: Path, tmp_path: Path, enrol) -> None:
    Authority.create(tmp_path / "theirs").close()
    theirs = Listener((tmp_path / "theirs" / "ca.pem").read_bytes())
    with listen(theirs, tmp_path / "theirs") as server:
        told = enrol(invite(identity, server.address, "pi-07"), "--out", str(tmp_path / "i"))
    assert (told.status, told.error["code"]) == (3, "wrong-server")
    assert "someone else's server" in told.error["message"]
    assert "the token was not sent" in told.error["message"]
    assert theirs.seen == [("/v1/ca.pem", b"")]
    assert not (tmp_path / "i").exists()


def test_server_that_shows_a_root_it_has_nothing_of_gets_no_token(identity: Path, tmp_path: Path, enrol) -> None:
    Authority.create(tmp_path / "theirs").close()
    between = Listener((identity / "ca.pem").read_bytes())
    with listen(between, tmp_path / "theirs") as server:
        told = enrol(invite(identity, server.address, "pi-08"), "--out", str(tmp_path / "i"))
    assert (told.status, told.error["code"]) == (3, "wrong-server")
    assert "someone may be in between; the token was not sent" in told.error["message"]
    assert between.seen == [("/v1/ca.pem", b"")]
    assert not (tmp_path / "i").exists()


def test_server_of_another_host_gets_no_token(server: WebServer, identity: Path, tmp_path: Path, enrol) -> None:
    with Authority(identity) as authority:
        issued = authority.issue_server(["elsewhere.example"])
        pair = issued.path, issued.path.with_suffix(".key")
    there = Listener((identity / "ca.pem").read_bytes())
    with WebServer("https://localhost:0", there, *pair) as other:
        told = enrol(invite(identity, other.address, "pi-09"), "--out", str(tmp_path / "i"))
    assert told.error["code"] == "wrong-server"
    assert "is not for that host" in told.error["message"]
    assert "apportion ca issue-server" in told.error["hint"]
    assert [path for path, _ in there.seen] == ["/v1/ca.pem"]


def test_unreachable_service_says_what_to_look_at(identity: Path, tmp_path: Path, enrol) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        link = invite(identity, f"https://localhost:{reserved.getsockname()[1]}", "pi-10")
        told = enrol(link, "--out", str(tmp_path / "i"))
    assert (told.status, told.error["code"]) == (3, "service-unreachable")
    assert "apportion device claims" in told.error["hint"]
    assert not (tmp_path / "i").exists()


def test_silent_service_is_given_up(identity: Path, tmp_path: Path, enrol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.identity.claim_client.TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = invite(identity, f"https://localhost:{silent.getsockname()[1]}", "pi-11")
        told = enrol(link, "--out", str(tmp_path / "i"))
    assert told.error["code"] == "service-unreachable"
    assert "timed out" in told.error["message"]


def test_something_else_at_the_address_is_no_claim_service(identity: Path, tmp_path: Path, enrol) -> None:
    other = Listener(b"<html>hello</html>")
    with listen(other, identity) as server:
        told = enrol(invite(identity, server.address, "pi-12"), "--out", str(tmp_path / "i"))
    assert told.error["code"] == "not-a-claim-service"
    assert "nothing was sent to it" in told.error["message"]
    nothing = Listener((identity / "ca.pem").read_bytes())
    with listen(nothing, identity) as server:  # the right server, of another make
        told = enrol(invite(identity, server.address, "pi-13"), "--out", str(tmp_path / "i"))
    assert told.error["code"] == "not-a-claim-service"
    assert not (tmp_path / "i").exists()


def test_clock_far_off_is_told_with_the_servers_time(
    server: WebServer, identity: Path, tmp_path: Path, enrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge.identity import enrolment

    link = invite(identity, server.address, "pi-14")
    real = enrolment.enrol
    monkeypatch.setattr(enrolment, "enrol", lambda *given: real(*given, now=lambda: 86_400.0))
    told = enrol(link, "--out", str(tmp_path / "i"))
    assert (told.status, told.error["code"]) == (3, "clock")
    assert "clock says 1970-01-02 00:00 UTC; the server's says" in told.error["message"]
    assert f"{datetime.datetime.now(datetime.UTC):%Y}" in told.error["message"].partition("server's says")[2]
    assert "timedatectl" in told.error["hint"]
    assert not (tmp_path / "i").exists()


def test_certificate_of_the_server_not_yet_valid_is_the_clock(tmp_path: Path, enrol) -> None:
    """The root is old, the server's certificate is from next week: as a device sees it whose clock is behind."""
    identity = tmp_path / "identity"
    Authority.create(identity).close()
    week = datetime.timedelta(days=7)
    with Authority(identity, now=lambda: datetime.datetime.now(datetime.UTC) + week) as authority:
        issued = authority.issue_server(["localhost", "127.0.0.1"])
    there = Listener((identity / "ca.pem").read_bytes())
    pair = issued.path, issued.path.with_suffix(".key")
    with WebServer("https://localhost:0", there, *pair) as server:
        told = enrol(invite(identity, server.address, "pi-15"), "--out", str(tmp_path / "i"))
    assert told.error["code"] == "clock"
    assert "not yet valid" in told.error["message"]
    assert [path for path, _ in there.seen] == ["/v1/ca.pem"]


def test_clock_that_only_the_new_certificate_shows_costs_no_token(tmp_path: Path) -> None:
    """Root and server are a month old, the device's clock ten days behind: the certificate is from its tomorrow."""
    identity, day = tmp_path / "identity", datetime.timedelta(days=1)
    with Authority.create(identity, now=lambda: datetime.datetime.now(datetime.UTC) - 30 * day) as authority:
        authority.issue_server(["localhost", "127.0.0.1"])
    with claim_server(identity, "https://localhost:0", ClaimHandler(identity)) as server:
        link = ClaimLink.from_text(invite(identity, server.address, "pi-22"))
        with pytest.raises(EnrolmentFailed, match="it was issued, and the same command fetches it") as error:
            enrol_here(link, tmp_path / "i", now=lambda: time.time() - 10 * 86_400)
        assert error.value.code == "clock"
        assert set(snapshot(tmp_path / "i")) == {"device.key", "device.csr"}
        assert enrol_here(link, tmp_path / "i").is_new
    with Authority(identity) as authority:
        assert len(authority.records.certificates("device", "pi-22")) == 1


def test_lost_answer_keeps_the_key_and_the_same_command_fetches_the_certificate(
    identity: Path, tmp_path: Path, enrol
) -> None:
    service = ClaimHandler(identity, federation="digits", broker="mqtts://broker.local")
    lose = threading.Event()
    lose.set()

    answering = web_application(None, service)

    async def losing(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_less(message: Message) -> None:
            # The token is used, the line is dead.
            await send({**message, "headers": []} if "status" in message else {**message, "more_body": True})

        is_lost = scope["path"] == CLAIM_PATH and lose.is_set()
        await answering(scope, receive, send_less if is_lost else send)

    pair = server_files(identity, "localhost")
    with WebServer("https://localhost:0", losing, *pair) as server:
        link = invite(identity, server.address, "pi-16")
        lost = enrol(link, "--out", str(tmp_path / "i"))
        assert (lost.status, lost.error["code"]) == (3, "answer-lost")
        assert "run the same command again" in lost.error["hint"]
        assert set(snapshot(tmp_path / "i")) == {"device.key", "device.csr"}
        lose.clear()
        # Whoever else has the link comes too late; the device itself does not.
        assert enrol(link, "--out", str(tmp_path / "thief")).error["code"] == "token-used"
        again = enrol(link, "--out", str(tmp_path / "i"))
    assert (again.status, again.values["is_new"]) == (0, True)
    assert set(snapshot(tmp_path / "i")) == FILES
    with Authority(identity) as authority:
        assert len(authority.records.certificates("device", "pi-16")) == 1


def test_folder_of_another_enrolment_is_left_alone(server: WebServer, identity: Path, tmp_path: Path, enrol) -> None:
    out = tmp_path / "i"
    assert enrol(invite(identity, server.address, "pi-17"), "--out", str(out)).status == 0
    before = snapshot(out)
    link = invite(identity, server.address, "pi-18")
    other = enrol(link, "--out", str(out))
    assert (other.status, other.error["code"]) == (2, "bad-config")
    assert "is of device ['pi-17'], the link is for 'pi-18'" in other.error["message"]
    foreign = claim_link(server.address, token_of(link), "0" * 64, "pi-17")
    assert "under another root" in enrol(foreign, "--out", str(out)).error["message"]
    assert snapshot(out) == before
    (out / "ca.pem").unlink()
    assert (
        "is not whole"
        in enrol(invite(identity, server.address, "pi-19"), "--device", "pi-19", "--out", str(out)).error["message"]
    )


def test_reply_for_another_key_is_not_written(server: WebServer, identity: Path, tmp_path: Path, enrol) -> None:
    service = ClaimHandler(identity)
    assert enrol(invite(identity, server.address, "pi-20"), "--out", str(tmp_path / "a")).status == 0
    from edge.contracts.claims import ClaimReply

    foreign = ClaimReply(
        device="pi-21",
        certificate=(tmp_path / "a" / "device.pem").read_text(),
        ca=(identity / "ca.pem").read_text(),
        signing_public=(identity / "signing.pub").read_text(),
    )

    answering = web_application(None, service)

    async def swap(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != CLAIM_PATH:
            await answering(scope, receive, send)
            return
        await Request(scope, receive).body()
        await Response(foreign.to_bytes(), headers={"Connection": "close"})(scope, receive, send)

    pair = server_files(identity, "localhost")
    with WebServer("https://localhost:0", swap, *pair) as bad:
        told = enrol(invite(identity, bad.address, "pi-21"), "--out", str(tmp_path / "b"))
    assert told.error["code"] == "bad-reply"
    assert "it is for ['pi-20'], or for another key" in told.error["message"]
    assert not (tmp_path / "b" / "device.pem").exists()


def test_enrol_without_arguments_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["enrol"]) == 2
    assert "LINK" in capsys.readouterr().err
    assert main(["enrol", "--help"]) == 0
    assert "Example: apportion enrol - --out identity" in capsys.readouterr().out
