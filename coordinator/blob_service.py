"""Blobs over HTTPS for devices with a ticket: ``GET /v1/<ticket>/<digest>`` with ``Range``, beside blocks over MQTT.

A ticket names a device and an end and is sealed with a key that lives as long as the process: after a restart devices
fall back to MQTT until they get a new order. What may be asked for is what MQTT's ``get`` gives: any blob, by digest.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.blob_store import BlobStore
from edge.contracts.errors import ArtifactCorrupt, BrokerUnreachable, MessageRejected

log = logging.getLogger("apportion.bulk")

GRACE_S = 60.0
"""How long a ticket outlives its order: the last block may still be on its way."""
NO_DEADLINE_S = 3600.0
CONNECTION_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 512
"""Each has a thread; whoever comes beyond is sent away, and asks over MQTT."""

_PIECE = 1 << 18
_PATH = re.compile(r"/v1/([^/]{1,200})/([0-9a-f]{64})")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")


class BlobService:
    """Serves ``blobs`` while its context is open.

    Args:
        url: ``https://host:port`` as devices reach it. On a loopback name it listens there only, else everywhere.
        certificate, key: PEM files, for that host.
        now: seconds since 1970.

    Attributes:
        bytes_sent: by device.
    """

    def __init__(
        self, blobs: BlobStore, url: str, certificate: Path, key: Path, *, now: Callable[[], float] = time.time
    ) -> None:
        self.blobs = blobs
        self.bytes_sent: dict[str, int] = {}
        self._now = now
        self._key = secrets.token_bytes(32)
        parts = urlsplit(url)
        host = parts.hostname or ""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        here = "127.0.0.1" if host in ("localhost", "127.0.0.1") else ""
        try:
            self._server = _Server((here, parts.port or 0), self)
        except OSError as error:
            raise BrokerUnreachable(
                f"blobs cannot be served at {url}: {error}", hint="free the port, or change $.broker.bulk"
            ) from error
        # A handshake waits for its client: in the connection's own thread, never while others are accepted.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._address = f"https://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)

    def __enter__(self) -> BlobService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(5.0)
        self._server.server_close()

    def url_for(self, device: str, valid_s: float) -> str:
        """Where ``device`` finds blobs for ``valid_s`` seconds from now (0: an hour); a digest is added to it."""
        expires = int(self._now() + (valid_s or NO_DEADLINE_S) + GRACE_S)
        return f"{self._address}/v1/{device}.{expires}.{self._seal(device, expires)}/"

    def holder(self, ticket: str) -> str | None:
        """The device a ticket was made for, None when it was not made here or has ended."""
        claim, _, seal = ticket.rpartition(".")
        device, _, expires = claim.rpartition(".")
        if not expires.isascii() or not expires.isdigit() or len(expires) > 12:
            return None
        is_ours = hmac.compare_digest(self._seal(device, int(expires)).encode(), seal.encode())
        return device if is_ours and self._now() < int(expires) else None

    def _seal(self, device: str, expires: int) -> str:
        return hmac.new(self._key, f"{device}\n{expires}".encode(), hashlib.sha256).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], service: BlobService) -> None:
        self.service = service
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("connection of %s ended early", client_address[0])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = CONNECTION_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        service = self.server.service
        asked = _PATH.fullmatch(self.path)
        device = service.holder(asked[1]) if asked else None
        if asked is None or device is None:
            self._answer(HTTPStatus.FORBIDDEN)
            return
        try:
            size = service.blobs.size(asked[2])
            file = service.blobs.open(asked[2])
        except (ArtifactCorrupt, MessageRejected, OSError):
            self._answer(HTTPStatus.NOT_FOUND)
            return
        with file:
            part = _RANGE.fullmatch(self.headers.get("Range", "bytes=0-"))
            first = int(part[1]) if part else size
            last = min(int(part[2]), size - 1) if part and part[2] else size - 1
            if first > last:
                self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
                return
            left = last - first + 1
            self._answer(HTTPStatus.PARTIAL_CONTENT, {"Content-Range": f"bytes {first}-{last}/{size}"}, left)
            file.seek(first)
            service.bytes_sent[device] = service.bytes_sent.get(device, 0) + left
            while left and (piece := file.read(min(left, _PIECE))):
                self.wfile.write(piece)
                left -= len(piece)

    def _answer(self, status: HTTPStatus, headers: dict[str, str] | None = None, length: int = 0) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        # The path holds a ticket, which belongs in no log.
        log.debug("%s: %s", self.client_address[0], args[1] if len(args) > 1 else "")
