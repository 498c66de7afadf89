"""Blobs over HTTPS for devices with a ticket, beside blocks over MQTT: ``GET /v1/<ticket>/<digest>`` with ``Range``.

What may be asked for is what MQTT's ``get`` gives: any blob, by digest. Updates come the other way, by ``PUT``, and are
:mod:`coordinator.upload_pieces`'. Who may ask is :mod:`coordinator.tickets`'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from coordinator.blob_store import BlobStore
from coordinator.byte_account import ByteAccount
from coordinator.https_server import HttpsServer, Request
from coordinator.tickets import Tickets, asked_range
from coordinator.upload_pieces import UploadPieces
from edge.contracts.errors import ApportionError

MAX_CONNECTIONS = 512
"""Each has a thread; whoever comes beyond is sent away, and asks over MQTT."""

_PIECE = 1 << 18


class BlobService:
    """Serves ``blobs`` while its context is open.

    Args:
        url: ``https://host:port`` as devices reach it. On a loopback name it listens there only, else everywhere.
        certificate, key: PEM files, for that host.
        beside: other services at the same address; they see a request first.
        account: counts bytes by device.
        now: seconds since 1970.

    Attributes:
        uploads: takes updates; None takes none.
    """

    def __init__(
        self,
        blobs: BlobStore,
        url: str,
        certificate: Path,
        key: Path,
        *,
        beside: Sequence[Callable[[Request], bool]] = (),
        account: ByteAccount | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.blobs = blobs
        self.account = account or ByteAccount()
        self.uploads: UploadPieces | None = None
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

    def end_tickets(self, device: str) -> None:
        """Give ``device`` nothing more for the addresses it was told."""
        self._tickets.end(device)

    def upload_to(self, bulk: str) -> str:
        """Where the device that has its blobs from ``bulk`` may put its update; empty when they are not from here."""
        return f"{bulk}upload/" if bulk.startswith(f"{self._server.address}/") else ""

    def holder(self, ticket: str) -> str | None:
        """The device a ticket was made for, None when it was not made here or has ended."""
        return self._tickets.holder(ticket)

    def _answer(self, request: Request) -> bool:
        if request.command == "PUT":
            return self._take(request)
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
        except (ApportionError, OSError):
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
            self.account.add(device, "down", "https", payload=left, wire=left)
            while left and (piece := file.read(min(left, _PIECE))):
                request.wfile.write(piece)
                left -= len(piece)
        return True

    def _take(self, request: Request) -> bool:
        if self.uploads is None:
            return False
        upload = self._tickets.opened_upload(request.path)
        if upload is None:
            request.close_connection = True  # a body may follow that nobody reads
            request.answer(HTTPStatus.FORBIDDEN, {"Connection": "close"})
        else:
            self.uploads.answer(request, *upload)
        return True
