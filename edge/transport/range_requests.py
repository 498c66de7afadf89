"""Blocks of blobs by HTTPS range requests, where an order says so: the broker carries the claim, not the bytes.

Takes the place of the message that asks for a block, and hands the block back as if it had come over MQTT, so that
pacing, resuming and checking stay in one place (:mod:`edge.transport.blocks`). Whatever fails here is asked for over
MQTT instead; after :data:`MAX_FAILURES` in a row everything is.
"""

from __future__ import annotations

import logging
import re
import ssl
import threading
from collections import deque
from collections.abc import Callable
from http.client import HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from edge.contracts.envelope import seal
from edge.contracts.messages import Block, Get
from edge.transport.base import Event, Received

log = logging.getLogger("apportion.bulk")

MAX_FAILURES = 3
TIMEOUT_S = 10.0
IDLE_S = 5.0
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class RangeRequests:
    """Called with what to ask for; one thread asks, and ends when nothing is asked for a while.

    Args:
        url: ``https://host:port/path/``, to which a digest is added; it holds the device's ticket.
        context: checks the server's certificate.
        deliver: gets each block as a received ``block`` message.
        fallback: asks over MQTT.
    """

    def __init__(
        self,
        url: str,
        context: Callable[[], ssl.SSLContext],
        *,
        deliver: Callable[[Event], None],
        fallback: Callable[[Get], None],
    ) -> None:
        self._url = url
        self._context = context
        self._deliver = deliver
        self._fallback = fallback
        self._asked: deque[Get] = deque()
        self._changed = threading.Condition()
        self._is_working = False
        self._failures = 0
        self._connection: HTTPSConnection | None = None

    def __call__(self, get: Get) -> None:
        """Ask for a block; returns at once."""
        if self._failures >= MAX_FAILURES or get.encoding != "raw":
            self._fallback(get)
            return
        with self._changed:
            self._asked.append(get)
            self._changed.notify()
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, name="bulk", daemon=True).start()

    def _work(self) -> None:
        while (get := self._next()) is not None:
            if self._failures >= MAX_FAILURES:
                self._fallback(get)  # asked before it was known that nobody answers
                continue
            try:
                block = self._fetch(get)
            except (OSError, HTTPException, ValueError) as error:
                self._failures += 1
                self._disconnect()
                log.warning("block of %s over HTTPS failed (%s), asking over MQTT", get.digest[:12], error)
                self._fallback(get)
            else:
                self._failures = 0
                self._deliver(Received("", seal("block", block)))

    def _next(self) -> Get | None:
        with self._changed:
            if not self._asked:
                self._changed.wait(IDLE_S)
            if self._asked:
                return self._asked.popleft()
            self._is_working = False
            self._disconnect()
            return None

    def _fetch(self, get: Get) -> Block:
        parts = urlsplit(self._url)
        if self._connection is None:
            if parts.scheme != "https" or not parts.hostname:
                raise ValueError("the order's address is not https://host:port/")
            self._connection = HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=self._context())
            log.info("blobs come over https://%s", parts.netloc)
        last = get.offset + get.length - 1
        self._connection.request("GET", parts.path + get.digest, headers={"Range": f"bytes={get.offset}-{last}"})
        response = self._connection.getresponse()
        data = response.read(get.length + 1)
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status != 206 or found is None:
            raise ValueError(f"status {response.status} {response.reason}")
        first, end, total = (int(text) for text in found.groups())
        if first != get.offset or len(data) != end - first + 1 or len(data) > get.length:
            raise ValueError(f"{len(data)} bytes of {found[0]} for {get.length} at {get.offset}")
        return Block(get.digest, get.offset, total, data)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
