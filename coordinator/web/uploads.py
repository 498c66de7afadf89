"""Updates that come in by ``PUT``: beside blocks over MQTT, into the same partial uploads.

An upload is offered over MQTT first, so that whose it is, how large it may be and when it has its turn are settled
before a byte of it is read. What it is worth is looked at when its report comes (:mod:`edge.serving.uploads`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge.contracts.errors import ApportionError, MessageRejected, StoreFull
from edge.serving.uploads import UploadHandler

MAX_PUT_BYTES = 1 << 20
"""Of one request: before each it is looked up whether the update is wanted still."""

OFFSET = "Upload-Offset"
"""Header of an answer: bytes that are here, from the first on without a gap."""

CHUNK_TIMEOUT_S = 30.0
"""For each chunk of a body to arrive."""

_CHUNK = 1 << 18
_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})")
_LENGTH = re.compile(r"[0-9]{1,18}")


class Asked(NamedTuple):
    """What a ``PUT`` brings: ``length`` bytes from ``first`` on of ``total``; none when it only asks."""

    first: int
    length: int
    total: int


class RefusedUpload(Response):
    """An answer before the body was read, of which some is read and dropped after it.

    A connection that is closed with bytes unread is reset, and who still sends them never sees the answer.
    """

    def __init__(self, status: HTTPStatus, received: int | None = None) -> None:
        place = {} if received is None else {OFFSET: str(received)}
        super().__init__(status_code=status, headers={**place, "Connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "more_body": True})
        unread = 2 * MAX_PUT_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                while unread > 0 and (message := await receive()).get("more_body"):
                    unread -= len(message["body"])
        await send({"type": "http.response.body"})


async def take_piece(request: Request, uploads: UploadHandler[Any], device: str, assignment_id: str) -> Response:
    """Take the body of ``request``, whose ticket is of ``device``, and say how far the upload has come."""
    asked = asked_piece(request.headers.get("content-range"), request.headers.get("content-length"))
    if isinstance(asked, HTTPStatus):
        return RefusedUpload(asked)
    try:
        place = await run_in_threadpool(uploads.place, device, assignment_id)
        if place is None:
            return RefusedUpload(HTTPStatus.NOT_FOUND)
        if asked.total != place.size or asked.length > MAX_PUT_BYTES:
            return RefusedUpload(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, place.received)
        if asked.length and asked.first != place.received:
            return RefusedUpload(HTTPStatus.CONFLICT, place.received)
        if not asked.length:
            return Response(status_code=HTTPStatus.NO_CONTENT, headers={OFFSET: str(place.received)})
        return await _taken(request, uploads, device, assignment_id, asked)
    except MessageRejected:
        return RefusedUpload(HTTPStatus.NOT_FOUND)  # another device's: no word of whether it exists
    except StoreFull:
        return RefusedUpload(HTTPStatus.INSUFFICIENT_STORAGE)
    except ApportionError:
        return RefusedUpload(HTTPStatus.SERVICE_UNAVAILABLE)


async def _taken(
    request: Request, uploads: UploadHandler[Any], device: str, assignment_id: str, asked: Asked
) -> Response:
    """Write the body. Of one that is cut off or stands still, what came is kept."""
    offset, end = asked.first, asked.first + asked.length
    body = request.stream()
    is_cut = False
    while offset < end and not is_cut:
        chunk = bytearray()
        try:
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                while len(chunk) < min(_CHUNK, end - offset):
                    chunk += await anext(body)
        except (ClientDisconnect, TimeoutError):
            is_cut = True
        if chunk:
            received = await run_in_threadpool(uploads.write, device, assignment_id, offset, bytes(chunk))
            offset += len(chunk)
            if received != offset:  # somebody else writes it too, or it was offered anew
                headers = {OFFSET: str(received), "Connection": "close"}
                return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
    if is_cut:
        return Response(status_code=HTTPStatus.REQUEST_TIMEOUT, headers={"Connection": "close"})
    return Response(status_code=HTTPStatus.NO_CONTENT, headers={OFFSET: str(offset)})


def asked_piece(content_range: str | None, content_length: str | None) -> Asked | HTTPStatus:
    """What the headers of a ``PUT`` announce, or the status that refuses them."""
    if content_length is None:
        return HTTPStatus.LENGTH_REQUIRED
    part = _RANGE.fullmatch(content_range or "")
    if part is None or not _LENGTH.fullmatch(content_length):
        return HTTPStatus.BAD_REQUEST
    length, total = int(content_length), int(part[3])
    if part[1] is None:
        return Asked(0, 0, total) if length == 0 else HTTPStatus.BAD_REQUEST
    first, last = int(part[1]), int(part[2])
    if last - first + 1 != length or length == 0:
        return HTTPStatus.BAD_REQUEST
    return Asked(first, length, total) if last < total else HTTPStatus.REQUEST_ENTITY_TOO_LARGE
