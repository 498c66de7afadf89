"""An HTTPS server for a few small services: each request is shown to them in turn, the first whose it is answers.

Every connection has a thread and, until its request is read, a deadline: a client that says nothing, or a letter at a
time, is cut off. What a request asks for, and who may, is for :mod:`coordinator.blob_service` and
:mod:`coordinator.fleet.claim_service`.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edge.contracts.errors import BrokerUnreachable

log = logging.getLogger("apportion.https")

CONNECTION_TIMEOUT_S = 30.0
"""For one read or write, and for a whole request to arrive."""

MAX_CONNECTIONS = 512
"""Each has a thread; whoever comes beyond is sent away."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HttpsServer:
    """Serves while its context is open.

    Args:
        url: ``https://host:port`` as clients reach it. On a loopback name it listens there only, else everywhere.
        certificate, key: PEM files, for that host.
        services: each gets a :class:`Request` and says whether it has answered it.
        what, hint: for the message when the port is taken.
        request_timeout_s: for a whole request to arrive, and for one read or write.

    Attributes:
        address: ``https://host:port`` with the port that was found where ``url`` had 0.

    Raises:
        BrokerUnreachable: nobody can listen there.
    """

    def __init__(
        self,
        url: str,
        certificate: Path,
        key: Path,
        services: Sequence[Callable[[Request], bool]],
        *,
        what: str,
        hint: str,
        max_connections: int = MAX_CONNECTIONS,
        request_timeout_s: float = CONNECTION_TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        is_v6 = ":" in host
        here = host if is_v6 and host in _LOOPBACK else "127.0.0.1" if host in _LOOPBACK else ""
        try:
            server = _Server6 if is_v6 else _Server
            self._server = server((here, parts.port or 0), services, max_connections, request_timeout_s)
        except OSError as error:
            raise BrokerUnreachable(f"{what} cannot be served at {url}: {error}", hint=hint) from error
        # A handshake waits for its client: in the connection's own thread, never while others are accepted.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.address = f"https://{f'[{host}]' if is_v6 else host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)

    def __enter__(self) -> HttpsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(5.0)
        self._server.server_close()


class Request(BaseHTTPRequestHandler):
    """One request as a service sees it: ``command``, ``path``, ``headers``, ``client_address``, and ways to answer."""

    protocol_version = "HTTP/1.1"
    server_version = "apportion"
    sys_version = ""
    disable_nagle_algorithm = True  # the end of a body would wait for the other side's delayed acknowledgement, 40 ms
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.request_timeout_s)

    def handle_one_request(self) -> None:
        self.server.expect(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        self._show_to_services()

    def do_POST(self) -> None:
        self._show_to_services()

    def do_PUT(self) -> None:
        self._show_to_services()

    def read_body(self, length: int) -> bytes:
        """Up to ``length`` bytes of the body; fewer when the client has gone. They have a deadline of their own."""
        self.server.expect(self.connection)
        try:
            return self._read_body(length)
        finally:
            self.server.forget(self.connection)

    def _read_body(self, length: int) -> bytes:
        pieces: list[bytes] = []
        while length:
            try:
                piece = self.rfile.read1(length)
            except OSError:
                break  # what came before the cut is of use
            if not piece:
                break
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def answer(self, status: HTTPStatus, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """The whole answer, with ``body``."""
        self.begin_answer(status, headers, len(body))
        self.wfile.write(body)

    def begin_answer(self, status: HTTPStatus, headers: dict[str, str] | None = None, length: int = 0) -> None:
        """The answer's head, for ``length`` bytes that the caller writes to ``wfile`` in its own time."""
        self.server.forget(self.connection)
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        # Paths and bodies hold tickets and tokens, which belong in no log.
        log.debug("%s: %s", self.client_address[0], args[1] if len(args) > 1 else "")

    def _show_to_services(self) -> None:
        if any(service(self) for service in self.server.services):
            return
        self.close_connection = True  # a body may follow that nobody has read
        self.answer(HTTPStatus.NOT_FOUND, {"Connection": "close"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: tuple[str, int],
        services: Sequence[Callable[[Request], bool]],
        max_connections: int,
        request_timeout_s: float,
    ) -> None:
        self.services = tuple(services)
        self.request_timeout_s = request_timeout_s
        self._free = threading.BoundedSemaphore(max_connections)
        self._expected: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, Request)

    def expect(self, connection: socket.socket) -> None:
        """Cut ``connection`` off unless its request is there in time."""
        with self._lock:
            self._expected[connection] = time.monotonic() + self.request_timeout_s

    def forget(self, connection: socket.socket) -> None:
        """Let ``connection`` take its time: its request is there, or it has ended."""
        with self._lock:
            self._expected.pop(connection, None)

    def service_actions(self) -> None:
        # A timeout of the socket alone starts anew with every byte.
        now = time.monotonic()
        with self._lock:
            late = [connection for connection, until in self._expected.items() if now > until]
            for connection in late:
                del self._expected[connection]
        for connection in late:
            try:
                # Not SSLSocket's own, which takes its state away from under the thread that reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                log.debug("a late connection had ended")

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.forget(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("connection of %s ended early", client_address[0])


class _Server6(_Server):
    address_family = socket.AF_INET6
