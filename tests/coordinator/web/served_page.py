"""What the tests of the web server hold: its address, what is behind it, and a client that does as it is told."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from urllib.parse import urlsplit

from coordinator.blobs.blob_store import BlobStore
from coordinator.web.blobs import Blobs
from coordinator.web.tickets import Tickets

SOCKET = "ws://127.0.0.1:9883/mqtt"


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: HTTPMessage
    body: bytes


@dataclass(frozen=True)
class ServedPage:
    """A running server; ``told`` are the devices whose claims were not refused."""

    address: str
    store: BlobStore
    tickets: Tickets
    blobs: Blobs
    told: list[str]

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        """The answer to one request, its path sent as it is; ``_`` in a header's name is ``-``."""
        connection = HTTPConnection(urlsplit(self.address).netloc, timeout=10)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()
