"""The server itself: TLS, ports, and clients that take their time or come in crowds."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from coordinator.brokers.broker_files import server_files
from coordinator.web.server import WebServer
from edge.contracts.errors import BrokerUnreachable

LARGE = 16 << 20


async def _small(request: Request) -> Response:
    return PlainTextResponse("here")


async def _large(request: Request) -> Response:
    return Response(bytes(LARGE))


async def _waits(request: Request) -> Response:
    await asyncio.sleep(2.0)
    return PlainTextResponse("here")


APP = Starlette(routes=[Route("/", _small), Route("/large", _large), Route("/waits", _waits)])


def connect(server: WebServer) -> socket.socket:
    parts = urlsplit(server.address)
    return socket.create_connection((parts.hostname, parts.port), 10)


def ended_after_s(client: socket.socket) -> float:
    """Seconds until the server ends the connection; what it says before is read and dropped."""
    began = time.monotonic()
    client.settimeout(10)
    try:
        while client.recv(65_536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - began


def letters_until_the_end(client: socket.socket) -> int:
    """Letters sent, one each 50 ms and at most 100, before the server had enough."""
    for count in range(100):
        try:
            client.sendall(b"x")
        except OSError:
            return count
        time.sleep(0.05)
    return 100


def test_page_over_tls_has_the_certificate_of_its_host(identity: Path) -> None:
    with WebServer("https://localhost:0", APP, *server_files(identity, "localhost")) as server:
        context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
        client = HTTPSConnection(urlsplit(server.address).netloc, context=context, timeout=10)
        client.request("GET", "/")
        assert client.getresponse().read() == b"here"
        client.close()


def test_end_does_not_wait_for_whoever_is_still_connected(identity: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
    with WebServer("https://localhost:0", APP, *server_files(identity, "localhost")) as server:
        client = HTTPSConnection(urlsplit(server.address).netloc, context=context, timeout=10)
        client.request("GET", "/")
        client.getresponse().read()
        began = time.monotonic()
    assert time.monotonic() - began < 0.9
    assert caplog.text == ""
    client.close()


def test_port_that_is_taken_is_told_and_free_again_after_the_end() -> None:
    with WebServer("http://127.0.0.1:0", APP) as server:
        with pytest.raises(BrokerUnreachable, match="cannot be served") as caught:
            WebServer(server.address, APP)
        assert "$.broker.web" in caught.value.hint
        first = server.address
    with WebServer(first, APP) as again:
        assert again.address == first


def test_certificate_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    with pytest.raises(BrokerUnreachable, match="cannot be served at https://localhost:0"):
        WebServer("https://localhost:0", APP, tmp_path / "x.pem", tmp_path / "x.pem")


@pytest.mark.slow
def test_client_that_says_nothing_or_a_letter_at_a_time_is_cut_off() -> None:
    with WebServer("http://127.0.0.1:0", APP, request_timeout_s=0.4) as server:
        with connect(server) as silent:
            assert 0.2 < ended_after_s(silent) < 5
        with connect(server) as slow:
            slow.sendall(b"GET / HT")
            assert letters_until_the_end(slow) < 100


@pytest.mark.slow
def test_second_request_of_a_connection_has_its_own_clock() -> None:
    with WebServer("http://127.0.0.1:0", APP, request_timeout_s=0.4) as server, connect(server) as client:
        for _ in range(2):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.3)
            assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET / HT")
        assert ended_after_s(client) < 5


@pytest.mark.slow
def test_client_that_does_not_read_is_cut_off() -> None:
    with WebServer("http://127.0.0.1:0", APP, stall_timeout_s=0.3) as server, connect(server) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(1.0)
        got = 0
        client.settimeout(10)
        try:
            while piece := client.recv(1 << 20):
                got += len(piece)
        except ConnectionError:
            pass
        assert got < LARGE


def test_connections_beyond_the_limit_are_sent_away() -> None:
    with WebServer("http://127.0.0.1:0", APP, max_connections=2) as server:
        with connect(server) as one, connect(server) as other:
            for busy in (one, other):
                busy.sendall(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.3)
            with connect(server) as third:
                assert ended_after_s(third) < 2
        time.sleep(0.1)
        with connect(server) as later:
            later.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert later.recv(65_536).startswith(b"HTTP/1.1 200")


def test_head_without_an_end_is_refused() -> None:
    with WebServer("http://127.0.0.1:0", APP) as server, connect(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * 40_000)
        assert client.recv(65_536).startswith(b"HTTP/1.1 400")


def test_paths_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with WebServer("http://127.0.0.1:0", APP) as server, connect(server) as client:
        client.sendall(b"GET /v1/a-secret-ticket/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"404" in client.recv(65_536)
    assert "a-secret-ticket" not in caplog.text
