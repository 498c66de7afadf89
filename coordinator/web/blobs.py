"""Blobs for devices with a ticket, beside blocks over MQTT: ``GET /v1/<ticket>/<digest>``, whole or a range.

What may be asked for is what MQTT's ``get`` gives: what an order of the device names. Updates come the other way, by
``PUT``, and are :mod:`coordinator.web.uploads`'. Who may ask is :mod:`coordinator.web.tickets`'.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coordinator.blobs.blob_store import BlobStore
from coordinator.messaging.named_blobs import NamedBlobs
from coordinator.web.tickets import Tickets, asked_range
from coordinator.web.uploads import MAX_PUT_BYTES, RefusedUpload, take_piece
from edge.contracts.errors import ApportionError, ArtifactCorrupt
from edge.serving.budgets import Budgets
from edge.serving.traffic import ByteAccount
from edge.serving.uploads import UploadHandler

_PIECE = 1 << 18


class Blobs:
    """Answers requests for blobs of ``store``, and counts their bytes by device in ``account``.

    Attributes:
        uploads: takes updates; None takes none.
        named: (device, digest) of the blobs that each may have; None: any.
        budgets: what each may ask for in all; None: anything.
    """

    def __init__(self, store: BlobStore, tickets: Tickets, account: ByteAccount | None = None) -> None:
        self.account = account or ByteAccount()
        self.uploads: UploadHandler[Any] | None = None
        self.named: NamedBlobs | None = None
        self.budgets: Budgets | None = None
        self._store = store
        self._tickets = tickets

    async def answer(self, request: Request) -> Response:
        """The blob, a part of it, how far an update has come, or why not."""
        return await (self._take(request) if request.method == "PUT" else self._give(request))

    async def _take(self, request: Request) -> Response:
        if self.uploads is None:
            return RefusedUpload(HTTPStatus.NOT_FOUND)
        opened = self._tickets.opened_upload(request.url.path)
        if opened is None:
            return RefusedUpload(HTTPStatus.FORBIDDEN)
        if not self._admits(opened[0], "put", _length(request)):
            return RefusedUpload(HTTPStatus.TOO_MANY_REQUESTS)
        return await take_piece(request, self.uploads, *opened)

    async def _give(self, request: Request) -> Response:
        # A ticket is for its device and its time: nothing in between keeps what it opened.
        headers = {"Cache-Control": "no-store", "Accept-Ranges": "bytes"}
        opened = self._tickets.opened(request.url.path)
        if opened is None:
            return Response(status_code=403, headers=headers)
        device, digest = opened
        if not self._admits(device, "get", 0):
            return Response(status_code=HTTPStatus.TOO_MANY_REQUESTS, headers={**headers, "Connection": "close"})
        asked = request.headers.get("range")
        try:
            # In a thread: a blob that is kept elsewhere is fetched first.
            size, part, piece = await run_in_threadpool(self._look_up, device, digest, asked)
        except (ApportionError, OSError):
            return Response(status_code=404, headers=headers)
        if part is None:
            return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
        first, last = part
        headers |= {"Content-Length": str(last - first + 1), "Content-Type": "application/octet-stream"}
        if asked is not None:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        status = 200 if asked is None else 206
        if piece:
            self._count(device, piece)
            return Response(piece, status, headers)
        return StreamingResponse(self._pieces(digest, first, last, device), status, headers)

    def _look_up(self, device: str, digest: str, asked: str | None) -> tuple[int, tuple[int, int] | None, bytes]:
        """Size of the blob, the part of it that is asked for, and its bytes where they are no more than a piece.

        Raises:
            ArtifactCorrupt: it is not there, or not for the device.
        """
        if self.named is not None and (device, digest) not in self.named:
            raise ArtifactCorrupt(f"blob {digest[:12]} is not named by an order of {device}")
        size = self._store.size(digest)
        part = asked_range(asked, size)
        is_small = part is not None and part[1] - part[0] < _PIECE
        return size, part, self._store.read(digest, part[0], part[1] - part[0] + 1) if part and is_small else b""

    async def _pieces(self, digest: str, first: int, last: int, device: str) -> AsyncIterator[bytes]:
        left = last - first + 1
        with await run_in_threadpool(self._store.open, digest) as file:
            file.seek(first)
            while left and (piece := await run_in_threadpool(file.read, min(left, _PIECE))):
                left -= len(piece)
                self._count(device, piece)
                yield piece

    def _admits(self, device: str, kind: str, size: int) -> bool:
        return self.budgets is None or self.budgets.admits(device, kind, size)

    def _count(self, device: str, piece: bytes) -> None:
        if self.budgets is not None:
            self.budgets.answered(device, len(piece))
        self.account.add(device, "down", "https", payload=len(piece), wire=len(piece))


def _length(request: Request) -> int:
    """Of the body; one that says none, or more than is taken, costs as much as the largest."""
    said = request.headers.get("content-length", "")
    return min(int(said), MAX_PUT_BYTES) if said.isascii() and said.isdigit() and len(said) < 18 else MAX_PUT_BYTES
