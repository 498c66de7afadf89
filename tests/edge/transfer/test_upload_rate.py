"""Uploads over slow links and to a coordinator that pauses: a simulated link, no clock and no broker."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from edge.contracts.messages import Grant, Put
from edge.contracts.plan import BlobRef
from edge.contracts.report import TrainReport
from edge.transfer.uploader import Uploader

SIZE = 4 * 2**20
BLOCK, WINDOW = 131_072, 4
DELAY_S = 0.03
TICK_S = 0.25
GIVE_UP_S = 1000.0


class Report:
    """What an uploader reads of a report."""

    assignment_id = "a"
    update = BlobRef("d", SIZE, "raw", SIZE)


class SlowLink:
    """A link of ``rate`` bytes per second, and a coordinator that says nothing in ``pauses`` (from, to; seconds)."""

    def __init__(self, folder: Path, rate: float, pauses: tuple[tuple[float, float], ...], lost: int) -> None:
        self.now = self._free = 0.0
        self.sent = self._held = self._puts = 0
        self._rate, self._pauses, self._lost = rate, pauses, lost
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        update = folder / "update"
        update.write_bytes(bytes(SIZE))
        self._uploader = Uploader(cast(TrainReport, Report()), update, self._send, 0.0)

    def run(self) -> tuple[float, float]:
        """Seconds until everything is there, and bytes sent for each of the update's."""
        self._later(0.0, self._tick)
        while not self._uploader._upload.is_complete and self.now < GIVE_UP_S:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return self.now, self.sent / SIZE

    def _later(self, at: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._number), happen))

    def _tick(self) -> None:
        self._uploader.tick(self.now)
        self._later(self.now + TICK_S, self._tick)

    def _send(self, kind: str, body: Any, *_: object) -> None:
        length = len(body.data) if kind == "put" else 200
        self.sent += length
        self._free = max(self._free, self.now) + length / self._rate
        self._later(self._free + DELAY_S, lambda: self._arrive(kind, body))

    def _arrive(self, kind: str, body: Any) -> None:
        for begin, end in self._pauses:
            if begin <= self.now < end:
                self._later(end, lambda: self._arrive(kind, body))
                return
        if isinstance(body, Put):
            self._puts += 1
            if self._puts == self._lost:
                return
            if body.offset == self._held:
                self._held += len(body.data)
        grant = Grant("a", "d", self._held, BLOCK, WINDOW)
        self._later(self.now + DELAY_S, lambda: self._uploader.granted(grant, self.now))


@pytest.mark.parametrize(
    ("rate", "pauses", "lost", "longest_s", "most_sent"),
    [
        (500_000, (), 0, 8.7, 1.001),
        (500_000, ((2.0, 6.0),), 0, 12.5, 1.01),
        (500_000, ((1.0, 4.0), (5.0, 8.0)), 0, 15.0, 1.01),
        (500_000, (), 10, 10.5, 1.15),
        (40_000, (), 0, 106.0, 1.01),
    ],
    ids=["plain", "pause", "pauses", "lost-block", "slow-link"],
)
def test_update_is_sent_once_however_slow_link_and_coordinator_are(
    tmp_path: Path, rate: float, pauses: tuple[tuple[float, float], ...], lost: int, longest_s: float, most_sent: float
) -> None:
    """Ideal: 4 MiB / rate, and what the coordinator pauses."""
    took_s, sent = SlowLink(tmp_path, rate, pauses, lost).run()
    assert SIZE / rate <= took_s <= longest_s
    assert 1.0 <= sent <= most_sent
