"""Blobs over HTTPS for devices with a ticket: ``GET /v1/<ticket>/<digest>`` with ``Range``, beside blocks over MQTT.

What may be asked for is what MQTT's ``get`` gives: any blob, by digest. Who may ask is :mod:`coordinator.tickets`'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from coordinator.blob_store import BlobStore
from coordinator.https_server import HttpsServer, Request
from coordinator.tickets import Tickets, asked_range
from edge.contracts.errors import ArtifactCorrupt, MessageRejected

MAX_CONNECTIONS = 512
"""Each has a thread; whoever comes beyond is sent away, and asks over MQTT."""

_PIECE = 1 << 18


class BlobService:
    """Serves ``blobs`` while its context is open.

    Args:
        url: ``https://host:port`` as devices reach it. On a loopback name it listens there only, else everywhere.
        certificate, key: PEM files, for that host.
        beside: other services at the same address; they see a request first.
        now: seconds since 1970.

    Attributes:
        bytes_sent: by device.
    """

    def __init__(
        self,
        blobs: BlobStore,
        url: str,
        certificate: Path,
        key: Path,
        *,
        beside: Sequence[Callable[[Request], bool]] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self.blobs = blobs
        self.bytes_sent: dict[str, int] = {}
        self._tickets = Tickets(now)
        self._server = HttpsServer(
            url,
            certificate,
            key,
            [*beside, self._answer],
            what="blobs",
            hint="free the port, or change $.broker.bulk",
            max_connections=MAX_CONNECTIONS,
        )

    def __enter__(self) -> BlobService:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def url_for(self, device: str, valid_s: float) -> str:
        """Where ``device`` finds blobs for ``valid_s`` seconds from now (0: an hour); a digest is added to it."""
        return self._server.address + self._tickets.path_for(device, valid_s)

    def holder(self, ticket: str) -> str | None:
        """The device a ticket was made for, None when it was not made here or has ended."""
        return self._tickets.holder(ticket)

    def _answer(self, request: Request) -> bool:
        if request.command != "GET":
            return False
        asked = self._tickets.opened(request.path)
        if asked is None:
            request.answer(HTTPStatus.FORBIDDEN)
            return True
        device, digest = asked
        try:
            size = self.blobs.size(digest)
            file = self.blobs.open(digest)
        except (ArtifactCorrupt, MessageRejected, OSError):
            request.answer(HTTPStatus.NOT_FOUND)
            return True
        with file:
            part = asked_range(request.headers.get("Range"), size)
            if part is None:
                request.answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
                return True
            first, last = part
            left = last - first + 1
            request.begin_answer(HTTPStatus.PARTIAL_CONTENT, {"Content-Range": f"bytes {first}-{last}/{size}"}, left)
            file.seek(first)
            self.bytes_sent[device] = self.bytes_sent.get(device, 0) + left
            while left and (piece := file.read(min(left, _PIECE))):
                request.wfile.write(piece)
                left -= len(piece)
        return True
