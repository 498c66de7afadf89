"""Blobs over HTTPS by range request, as an order's ``bulk`` names them; a scenario may have it fail."""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from coordinator.broker_certificates import ServerCertificate

TICKET = "/v1/ticket/"
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")


class KitBlobServer:
    """Serves ``blobs``.

    Attributes:
        url: what an order says; ``http`` without a certificate, as a page of the same machine has it.
        asked: (digest, first, last) of every request.
        fails: whether every request is answered with status 503.
    """

    def __init__(self, blobs: Mapping[str, bytes], origin: str) -> None:
        self.url = origin + TICKET
        self.blobs = blobs
        self.asked: list[tuple[str, int, int]] = []
        self.fails = False


@contextlib.contextmanager
def open_blob_server(blobs: Mapping[str, bytes], certificate: ServerCertificate | None) -> Iterator[KitBlobServer]:
    """A server with ``certificate`` for as long as the context is open."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        place = f"127.0.0.1:{server.server_address[1]}"
        found = KitBlobServer(blobs, f"http://{place}" if certificate is None else f"https://{place}")
        server.found = found  # type: ignore[attr-defined]
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, name="blobs", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(5.0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30.0

    def do_GET(self) -> None:
        found: KitBlobServer = self.server.found  # type: ignore[attr-defined]
        part = _RANGE.fullmatch(self.headers.get("Range", ""))
        digest = self.path.removeprefix(TICKET)
        data = found.blobs.get(digest)
        found.asked.append((digest, *((int(part[1]), int(part[2])) if part else (0, 0))))
        if found.fails or part is None or data is None:
            self._answer(503 if found.fails else 404, {}, b"")
            return
        first, last = int(part[1]), min(int(part[2]), len(data) - 1)
        self._answer(206, {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1])

    def do_OPTIONS(self) -> None:
        """A page of another origin asks whether it may ask for a range."""
        self._answer(204, {"Access-Control-Allow-Headers": "range", "Access-Control-Allow-Methods": "GET"}, b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the kit says what it saw."""

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        everyone = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "content-range"}
        for name, value in {**headers, **everyone, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
