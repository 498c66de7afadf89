"""Blobs for browsers with a ticket: ``GET /v1/<ticket>/<digest>``, whole or a range, at the page's own address.

The same tickets as :mod:`coordinator.blob_service`'s; without ``Range`` a browser gets the whole blob and a 200.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coordinator.blob_store import BlobStore
from coordinator.byte_account import ByteAccount
from coordinator.tickets import Tickets, asked_range
from edge.contracts.errors import ApportionError

_PIECE = 1 << 18


class Blobs:
    """Answers requests for blobs of ``store``, and counts their bytes by device in ``account``."""

    def __init__(self, store: BlobStore, tickets: Tickets, account: ByteAccount | None = None) -> None:
        self.account = account or ByteAccount()
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
            # In a thread: a blob that is kept elsewhere is fetched first.
            path = await anyio.to_thread.run_sync(self._store.path, digest)
            size = path.stat().st_size
        except (ApportionError, OSError):
            return Response(status_code=404, headers=headers)
        asked = request.headers.get("range")
        part = asked_range(asked, size)
        if part is None:
            return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
        first, last = part
        headers |= {"Content-Length": str(last - first + 1), "Content-Type": "application/octet-stream"}
        if asked is not None:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        pieces = self._pieces(path, first, last, device)
        return StreamingResponse(pieces, status_code=200 if asked is None else 206, headers=headers)

    async def _pieces(self, path: Path, first: int, last: int, device: str) -> AsyncIterator[bytes]:
        left = last - first + 1
        async with await anyio.open_file(path, "rb") as file:
            await file.seek(first)
            while left and (piece := await file.read(min(left, _PIECE))):
                left -= len(piece)
                self.account.add(device, "down", "https", payload=len(piece), wire=len(piece))
                yield piece
