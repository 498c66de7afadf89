"""An update by HTTPS ``PUT``, where its order names an address: the broker carries offer and report, not the bytes.

Takes the place of ``put`` blocks, and hands on how far it has come as if a ``grant`` had come over MQTT, so that what
is complete, or is to be offered again, stays decided in one place (:mod:`edge.transport.blocks`). A cut-off upload asks
how far it came and goes on from there; after :data:`MAX_FAILURES` in a row without any progress it gives up, and blocks
go over MQTT instead.
"""

from __future__ import annotations

import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from edge.contracts.envelope import seal
from edge.contracts.messages import Grant
from edge.contracts.plan import BlobRef
from edge.transport.base import Event, Received
from edge.transport.blocks import BLOCK_BYTES, WINDOW

log = logging.getLogger("apportion.bulk")

PIECE_BYTES = 1 << 20
MAX_FAILURES = 3
PAUSE_S = 0.5
"""After a failure; twice as long after the second."""
TIMEOUT_S = 30.0

_SLICE = 1 << 16
"""Written at once: a slow link has its time for each."""

_OFFSET = re.compile(r"[0-9]{1,18}")


class NotGranted(ValueError):
    """The other side does not expect this update: it is to be offered again."""


class PutRequests:
    """Sends one update from wherever it is told to go on; a thread does, and ends with the upload or its failure.

    Args:
        url: ``https://host:port/path`` of this update; it holds the device's ticket.
        context: checks the server's certificate.
        update: the file, ``ref.encoded_size`` bytes.
        deliver: gets each step forward as a received ``grant`` message.
    """

    def __init__(
        self,
        url: str,
        context: Callable[[], ssl.SSLContext],
        assignment_id: str,
        ref: BlobRef,
        update: Path,
        *,
        deliver: Callable[[Event], None],
    ) -> None:
        self._url = url
        self._context = context
        self._assignment_id = assignment_id
        self._ref = ref
        self._update = update
        self._deliver = deliver
        self._lock = threading.Lock()
        self._is_working = False
        self._failures = 0
        self._furthest = 0
        self._connection: HTTPSConnection | None = None

    @property
    def has_given_up(self) -> bool:
        """Nothing came of it too often: send the update another way."""
        return self._failures >= MAX_FAILURES

    def go_on(self, offset: int) -> None:
        """Send from ``offset`` on, unless that is being done; returns at once."""
        with self._lock:
            if self._is_working or self.has_given_up:
                return
            self._is_working = True
        threading.Thread(target=self._work, args=(offset,), name="upload", daemon=True).start()

    def _work(self, offset: int) -> None:
        try:
            with self._update.open("rb", buffering=0) as file:
                self._send(file, offset)
        except OSError as error:  # the assignment is over, and its file gone
            log.info("update of %s is not sent on: %s", self._assignment_id[:12], error)
        finally:
            self._disconnect()
            with self._lock:
                self._is_working = False

    def _send(self, file: BinaryIO, offset: int) -> None:
        is_known = True
        while offset < self._ref.encoded_size or not is_known:
            try:
                before, offset = offset, self._request(file, offset if is_known else None)
                self._failures += is_known and offset <= before
                is_known = True
                if offset > self._furthest:
                    self._furthest, self._failures = offset, 0
                elif self.has_given_up:
                    return
            except (OSError, HTTPException, ValueError) as error:
                self._failures += 1
                self._disconnect()
                log.warning("update of %s over HTTPS: %s", self._assignment_id[:12], error)
                if self.has_given_up or isinstance(error, NotGranted):
                    return
                is_known = False
                time.sleep(PAUSE_S * self._failures)
                continue
            grant = Grant(self._assignment_id, self._ref.digest, offset, BLOCK_BYTES, WINDOW)
            self._deliver(Received("", seal("grant", grant)))

    def _request(self, file: BinaryIO, offset: int | None) -> int:
        """Send the piece at ``offset``, none where that is None; bytes that have arrived in all."""
        parts, total = urlsplit(self._url), self._ref.encoded_size
        if self._connection is None:
            if parts.scheme != "https" or not parts.hostname:
                raise ValueError("the order's address is not https://host:port/")
            self._connection = HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=self._context())
            log.info("the update goes over https://%s", parts.netloc)
        first = 0 if offset is None else offset
        length = 0 if offset is None else min(PIECE_BYTES, total - offset)
        span = f"{first}-{first + length - 1}" if length else "*"
        headers = {"Content-Range": f"bytes {span}/{total}", "Content-Length": str(length)}
        self._connection.request("PUT", parts.path, body=_slices(file, first, length), headers=headers)
        response = self._connection.getresponse()
        response.read()
        found = response.headers.get("Upload-Offset", "")
        if response.status == 404:
            raise NotGranted("it is not expected there; offering it again")
        if response.status not in (204, 409) or not _OFFSET.fullmatch(found) or int(found) > total:
            raise ValueError(f"status {response.status} {response.reason}")
        if response.will_close:
            self._disconnect()
        return int(found)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _slices(file: BinaryIO, offset: int, length: int) -> Iterator[bytes]:
    file.seek(offset)
    while length:
        data = file.read(min(_SLICE, length))
        if not data:
            raise OSError("the update's file is shorter than it was")
        yield data
        length -= len(data)
