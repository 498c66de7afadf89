"""Updates that come in by ``PUT``: beside blocks over MQTT, into the same partial uploads, in turn with messages.

An upload is offered over MQTT first, so that whose it is, how large it may be and when it has its turn are settled
before a byte of it is read. What it is worth is looked at when its report comes (:mod:`coordinator.upload_desk`).
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from coordinator.byte_account import ByteAccount
from edge.contracts.errors import ApportionError, MessageRejected, StoreFull

if TYPE_CHECKING:
    from coordinator.https_server import Request
    from coordinator.upload_desk import UploadDesk

MAX_PUT_BYTES = 1 << 20
"""Of one request: before each it is looked up whether the update is wanted still."""

OFFSET = "Upload-Offset"
"""Header of an answer: bytes that are here, from the first on without a gap."""

_CHUNK = 1 << 18
_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})")
_LENGTH = re.compile(r"[0-9]{1,18}")


class Asked(NamedTuple):
    """What a ``PUT`` brings: ``length`` bytes from ``first`` on of ``total``; none when it only asks."""

    first: int
    length: int
    total: int


class UploadPieces:
    """Takes pieces of offered updates from the threads of an HTTPS server.

    Args:
        at_rest: a context in which no message is handled; a partial upload has one writer.
    """

    def __init__(self, desk: UploadDesk, at_rest: AbstractContextManager[object], account: ByteAccount) -> None:
        self._desk = desk
        self._at_rest = at_rest
        self._account = account

    def answer(self, request: Request, device: str, assignment_id: str) -> None:
        """Take the body of ``request``, whose ticket is of ``device``, and say how far the upload has come."""
        try:
            self._answer(request, device, assignment_id)
        except MessageRejected:
            _refuse(request, HTTPStatus.NOT_FOUND)  # another device's: no word of whether it exists
        except StoreFull:
            _refuse(request, HTTPStatus.INSUFFICIENT_STORAGE)
        except ApportionError:
            _refuse(request, HTTPStatus.SERVICE_UNAVAILABLE)

    def _answer(self, request: Request, device: str, assignment_id: str) -> None:
        asked = asked_piece(request.headers.get("Content-Range"), request.headers.get("Content-Length"))
        if isinstance(asked, HTTPStatus):
            _refuse(request, asked)
            return
        with self._at_rest:
            place = self._desk.place(device, assignment_id)
        if place is None:
            _refuse(request, HTTPStatus.NOT_FOUND)
        elif asked.total != place.size or asked.length > MAX_PUT_BYTES:
            _refuse(request, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, place.received)
        elif asked.length and asked.first != place.received:
            _refuse(request, HTTPStatus.CONFLICT, place.received)
        else:
            received = self._take(request, device, assignment_id, asked) if asked.length else place.received
            request.answer(HTTPStatus.NO_CONTENT, {OFFSET: str(received)})

    def _take(self, request: Request, device: str, assignment_id: str, asked: Asked) -> int:
        """Bytes that are here when the body has ended. Of one that is cut off, what came is kept."""
        offset, end = asked.first, asked.first + asked.length
        while offset < end:
            data = request.read_body(min(_CHUNK, end - offset))
            if not data:
                raise ConnectionError(f"{end - offset} bytes of a piece are missing")
            with self._at_rest:
                received = self._desk.write(device, assignment_id, offset, data)
            self._account.add(device, "up", "https", payload=max(0, received - offset), wire=len(data))
            offset += len(data)
            if received != offset:
                request.close_connection = True  # somebody else writes it too, or it was offered anew
                return received
        return offset


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


def _refuse(request: Request, status: HTTPStatus, received: int | None = None) -> None:
    request.close_connection = True
    place = {} if received is None else {OFFSET: str(received)}
    request.answer(status, {**place, "Connection": "close"})
    # A connection that is closed with bytes unread is reset, and who still sends them never sees the answer.
    unread = 2 * MAX_PUT_BYTES
    while unread > 0 and (dropped := request.read_body(min(_CHUNK, unread))):
        unread -= len(dropped)
