"""Blobs over HTTPS for devices with a ticket: ``GET /v1/<ticket>/<digest>`` with ``Range``, beside blocks over MQTT.

A ticket names a device and an end and is sealed with a key that lives as long as the process: after a restart devices
fall back to MQTT until they get a new order. What may be asked for is what MQTT's ``get`` gives: any blob, by digest.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from coordinator.blob_store import BlobStore
from coordinator.https_server import HttpsServer, Request
from edge.contracts.errors import ArtifactCorrupt, MessageRejected

GRACE_S = 60.0
"""How long a ticket outlives its order: the last block may still be on its way."""
NO_DEADLINE_S = 3600.0
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
        self._now = now
        self._key = secrets.token_bytes(32)
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
        expires = int(self._now() + (valid_s or NO_DEADLINE_S) + GRACE_S)
        return f"{self._server.address}/v1/{device}.{expires}.{self._seal(device, expires)}/"

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

    def _answer(self, request: Request) -> bool:
        if request.command != "GET":
            return False
        asked = _PATH.fullmatch(request.path)
        device = self.holder(asked[1]) if asked else None
        if asked is None or device is None:
            request.answer(HTTPStatus.FORBIDDEN)
            return True
        try:
            size = self.blobs.size(asked[2])
            file = self.blobs.open(asked[2])
        except (ArtifactCorrupt, MessageRejected, OSError):
            request.answer(HTTPStatus.NOT_FOUND)
            return True
        with file:
            part = _RANGE.fullmatch(request.headers.get("Range", "bytes=0-"))
            first = int(part[1]) if part else size
            last = min(int(part[2]), size - 1) if part and part[2] else size - 1
            if first > last:
                request.answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
                return True
            left = last - first + 1
            request.begin_answer(HTTPStatus.PARTIAL_CONTENT, {"Content-Range": f"bytes {first}-{last}/{size}"}, left)
            file.seek(first)
            self.bytes_sent[device] = self.bytes_sent.get(device, 0) + left
            while left and (piece := file.read(min(left, _PIECE))):
                request.wfile.write(piece)
                left -= len(piece)
        return True
