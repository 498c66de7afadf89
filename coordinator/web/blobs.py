"""Blobs for browsers with a ticket: ``GET /v1/<ticket>/<digest>``, whole or a range, at the page's own address.

The same tickets as :mod:`coordinator.blob_service`'s; without ``Range`` a browser gets the whole blob and a 200.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coordinator.blob_store import BlobStore
from coordinator.tickets import Tickets, asked_range
from edge.contracts.errors import ArtifactCorrupt, MessageRejected

_PIECE = 1 << 18


class Blobs:
    """Answers requests for blobs of ``store``.

    Attributes:
        bytes_sent: by device.
    """

    def __init__(self, store: BlobStore, tickets: Tickets) -> None:
        self.bytes_sent: dict[str, int] = {}
        self._store = store
        self._tickets = tickets

    async def answer(self, request: Request) -> Response:
        """The blob, a part of it, or why not."""
        # A ticket is for its device and its time: nothing in between keeps what it opened.
        headers = {"Cache-Control": "no-store", "Accept-Ranges": "bytes"}
        opened = self._tickets.opened(request.url.path)
        if opened is None:
            return Response(status_code=403, headers=headers)
        device, digest = opened
        try:
            size = self._store.size(digest)
        except (ArtifactCorrupt, MessageRejected, OSError):
            return Response(status_code=404, headers=headers)
        asked = request.headers.get("range")
        part = asked_range(asked, size)
        if part is None:
            return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
        first, last = part
        headers |= {"Content-Length": str(last - first + 1), "Content-Type": "application/octet-stream"}
        if asked is not None:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        pieces = self._pieces(self._store.path(digest), first, last, device)
        return StreamingResponse(pieces, status_code=200 if asked is None else 206, headers=headers)

    async def _pieces(self, path: Path, first: int, last: int, device: str) -> AsyncIterator[bytes]:
        left = last - first + 1
        async with await anyio.open_file(path, "rb") as file:
            await file.seek(first)
            while left and (piece := await file.read(min(left, _PIECE))):
                left -= len(piece)
                self.bytes_sent[device] = self.bytes_sent.get(device, 0) + len(piece)
                yield piece
