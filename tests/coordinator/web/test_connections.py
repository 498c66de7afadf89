"""Connections beyond what a server has room for: who comes again and again keeps nobody else out."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.fleet.claim_link import claim_link, root_fingerprint
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from coordinator.web.connections import Listener
from coordinator.web.device_services import claim_server
from edge.contracts.claims import ClaimLink
from edge.identity.enrolment import enrol


@contextlib.contextmanager
def reconnecting(source: str, port: int, count: int, what: str = "tls") -> Iterator[None]:
    module = "tests.coordinator.web.reconnecting"
    command = [sys.executable, "-m", module, source, str(port), str(count), what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "count"),
    [("127.0.0.1", 200), ("127.0.0.2", 200), ("127.0.0.2", 700)],
    ids=["200 of the same address", "200 of another", "700 of another, more than there is room for"],
)
def test_enrolment_completes_beside_sockets_that_reconnect(tmp_path: Path, source: str, count: int) -> None:
    """At the device's own address, too: a site behind one router."""
    identity = tmp_path / "identity"
    with Authority.create(identity) as authority:
        token = create_token(authority, "pi-1", 3600)
    handler = ClaimHandler(identity, federation="digits", broker="mqtts://broker.local")
    with claim_server(identity, "https://localhost:0", handler) as server:
        pin = root_fingerprint((identity / "ca.pem").read_bytes())
        link = ClaimLink.from_text(claim_link(server.address, token, pin, "pi-1"))
        with reconnecting(source, urlsplit(server.address).port or 0, count):
            began = time.monotonic()
            enrolled = enrol(link, tmp_path / "device")
            took_s = time.monotonic() - began
    assert enrolled.device == "pi-1"
    assert took_s < 10.0


class Site:
    """A listener, and connections to it from addresses of this machine."""

    def __init__(self, most: int, of_an_address: int = 0) -> None:
        self.listener = Listener("127.0.0.1", 0, most, of_an_address)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.taken: list[socket.socket] = []
        self.clients: list[socket.socket] = []

    def connect(self, source: str) -> socket.socket:
        """A client, whose connection was taken or not."""
        client = socket.create_connection(("127.0.0.1", self.port), 5, (source, 0))
        self.clients.append(client)
        with contextlib.suppress(BlockingIOError):
            self.taken.append(self.listener.accept()[0])
        return client

    def asks(self, client: socket.socket, is_busy: bool = True) -> None:
        (own,) = [taken for taken in self.taken if taken.fileno() >= 0 and taken.getpeername() == client.getsockname()]
        self.listener.asks(own.fileno(), client.getsockname()[0], is_busy)

    def alive(self, clients: list[socket.socket]) -> int:
        """How many of ``clients`` have their connection still."""
        alive = 0
        for client in clients:
            client.setblocking(False)
            try:
                client.recv(1)
            except BlockingIOError:
                alive += 1
            except OSError:
                pass
        return alive


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    made: list[Site] = []
    yield made
    for site in made:
        for each in (*site.clients, *site.taken, site.listener):
            each.close()


def test_newcomer_takes_a_silent_place_of_the_address_that_has_most(sites: list[Site]) -> None:
    sites.append(site := Site(8))
    crowd = [site.connect("127.0.0.2") for _ in range(7)]
    other = [site.connect("127.0.0.3")]
    newcomers = [site.connect("127.0.0.1") for _ in range(3)]
    assert (site.alive(crowd), site.alive(other), site.alive(newcomers)) == (4, 1, 3)


def test_crowd_of_one_address_displaces_its_own_alone(sites: list[Site]) -> None:
    sites.append(site := Site(8))
    others = [site.connect("127.0.0.1") for _ in range(2)]
    crowd = [site.connect("127.0.0.2") for _ in range(100)]
    assert (site.alive(others), site.alive(crowd)) == (2, 6)


def test_requests_that_are_answered_are_not_displaced_by_their_own_address(sites: list[Site]) -> None:
    sites.append(site := Site(4))
    busy = [site.connect("127.0.0.2") for _ in range(3)]
    for client in busy:
        site.asks(client)
    more = [site.connect("127.0.0.2") for _ in range(50)]
    assert (site.alive(busy), site.alive(more)) == (3, 1)


def test_address_over_its_share_loses_busy_places_to_others(sites: list[Site]) -> None:
    sites.append(site := Site(8, 4))
    busy = [site.connect("127.0.0.2") for _ in range(8)]
    for client in busy:
        site.asks(client)
    newcomers = [site.connect("127.0.0.1") for _ in range(20)]
    assert site.alive(busy) == 4
    assert site.alive(newcomers) == 4


def test_who_waits_for_a_next_request_goes_after_who_asked_nothing(sites: list[Site]) -> None:
    sites.append(site := Site(4))
    idle = [site.connect("127.0.0.2") for _ in range(2)]
    for client in idle:
        site.asks(client)
        site.asks(client, is_busy=False)
    silent = [site.connect("127.0.0.2") for _ in range(2)]
    first = site.connect("127.0.0.1")
    assert (site.alive(idle), site.alive(silent), site.alive([first])) == (2, 1, 1)


def test_closed_connections_leave_their_places(sites: list[Site]) -> None:
    sites.append(site := Site(2))
    for _ in range(10):
        site.connect("127.0.0.1")
        site.taken[-1].close()
    last = [site.connect("127.0.0.1") for _ in range(2)]
    assert site.alive(last) == 2
