"""Sends a finished update: offer, wait for a grant, blocks within its window, and the report when all has arrived.

Where the order names an address for it, pieces over HTTPS take the place of the blocks while that works.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.contracts.messages import Grant, Offer, Put
from edge.contracts.report import TrainReport
from edge.transport.base import Qos
from edge.transport.blocks import Upload

if TYPE_CHECKING:
    from edge.transport.put_requests import PutRequests

Send = Callable[[str, Any, Qos, str | None], None]
"""Publishes (kind, body, qos, message id); a message without an id gets a random one."""

REPEAT_S = 5.0
"""An offer without a grant and a report without an acknowledgement are repeated this often."""


class Uploader:
    """One update on its way to the coordinator.

    Args:
        update: the encoded update file.
        pieces: sends them over HTTPS; None: blocks over MQTT.
    """

    def __init__(
        self, report: TrainReport, update: Path, send: Send, now: float, pieces: PutRequests | None = None
    ) -> None:
        self._report = report
        self._update = update
        self._send = send
        self._pieces = pieces
        self._upload = Upload(report.update, now)
        self._repeat_at = now
        self._report_id = uuid.uuid4().hex

    def tick(self, now: float) -> None:
        """Offer, send blocks, or report, whichever is due."""
        if self._pieces is not None and self._pieces.has_given_up:
            self._pieces = None
            self._upload.reconnected(now)
            self._repeat_at = now
        if self._upload.is_stalled(now):
            self._repeat_at = now
        if self._upload.is_complete:
            if now >= self._repeat_at:
                self._repeat_at = now + REPEAT_S
                self._send("report", self._report, 1, self._report_id)
        elif self._upload.is_offer_open and now >= self._repeat_at:
            self._repeat_at = now + REPEAT_S
            self._upload.offered()
            self._send("offer", Offer(self._report.assignment_id, self._report.update), 1, None)
        self._put()

    def granted(self, grant: Grant, now: float) -> None:
        """Go on from a grant; grants for other updates are ignored.

        Raises:
            MessageRejected: a grant that makes no sense.
        """
        if grant.digest != self._report.update.digest or grant.assignment_id != self._report.assignment_id:
            return
        was_complete = self._upload.is_complete
        self._upload.granted(grant, now)
        if self._upload.is_complete and not was_complete:
            self._repeat_at = now
        self.tick(now)

    def reconnected(self, now: float) -> None:
        """Offer again at once: what was on its way may be lost."""
        self._upload.reconnected(now)
        self._repeat_at = now
        self.tick(now)

    def _put(self) -> None:
        if self._pieces is not None:
            if not self._upload.is_offer_open and not self._upload.is_complete:
                self._pieces.go_on(self._upload.confirmed)
            return
        spans = self._upload.sends()
        if not spans:
            return
        with self._update.open("rb", buffering=0) as file:
            for offset, length in spans:
                file.seek(offset)
                body = Put(self._report.assignment_id, self._report.update.digest, offset, file.read(length))
                # QoS 0: a lost block shows as a stall and is sent again; the broker keeps no copy.
                self._send("put", body, 0, None)
