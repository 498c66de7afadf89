"""What a phone asks for and says, taken apart: ranges of blobs, and the messages of each connection to the broker."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
from playwright.sync_api import Page, Request, WebSocket

from edge.contracts.envelope import unseal
from tests.web.phone import Phone

_BLOB = re.compile(r"/v1/[^/]+/([0-9a-f]{64})$")
_PUBLISH = 3


@dataclass(frozen=True)
class Said:
    """One message that the phone sent."""

    kind: str
    body: dict[str, Any]


@dataclass
class Connection:
    """The messages of one WebSocket, in order."""

    said: list[Said] = field(default_factory=list)
    _bytes: bytearray = field(default_factory=bytearray)

    def take(self, frame: bytes) -> None:
        """Adds the messages that ``frame`` completes. Packets of MQTT need not end where frames do."""
        self._bytes += frame
        while (packet := self._packet()) is not None:
            flags, rest = packet
            if flags >> 4 != _PUBLISH:
                continue
            start = 2 + int.from_bytes(rest[:2], "big") + (2 if flags & 0b110 else 0)
            envelope = unseal(bytes(rest[start:]))
            self.said.append(Said(envelope.kind, msgspec.msgpack.decode(envelope.body)))

    def _packet(self) -> tuple[int, bytes] | None:
        length, at = 0, 1
        while True:
            if at >= len(self._bytes):
                return None
            digit = self._bytes[at]
            length |= (digit & 127) << (7 * (at - 1))
            at += 1
            if digit < 128:
                break
        if len(self._bytes) < at + length:
            return None
        flags, rest = self._bytes[0], bytes(self._bytes[at : at + length])
        del self._bytes[: at + length]
        return flags, rest


class Trace:
    """Follows all pages of ``phone``, those to come too.

    Attributes:
        asked: (digest, Range header) of every request for a blob.
    """

    def __init__(self, phone: Phone) -> None:
        self.asked: list[tuple[str, str]] = []
        self.connections: list[Connection] = []
        phone.context.on("request", self._requested)
        phone.context.on("page", self._follow)
        self._follow(phone.page)

    def said(self, kind: str, assignment: str = "") -> list[Said]:
        """Every message of ``kind``, for ``assignment`` where it is given."""
        return [
            each
            for connection in self.connections
            for each in connection.said
            if each.kind == kind and assignment in ("", each.body.get("assignment_id"))
        ]

    def _follow(self, page: Page) -> None:
        page.on("websocket", self._opened)

    def _requested(self, request: Request) -> None:
        if (found := _BLOB.search(request.url)) is not None:
            self.asked.append((found[1], request.headers.get("range", "")))

    def _opened(self, socket: WebSocket) -> None:
        connection = Connection()
        self.connections.append(connection)
        socket.on("framesent", lambda frame: connection.take(frame if isinstance(frame, bytes) else frame.encode()))
