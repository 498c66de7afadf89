"""One look at a run: what the ledger has, and what its devices do now where a coordinator runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from coordinator.dashboard.fleet import DeviceView, view_of
from coordinator.history.history import PAGE, History
from coordinator.history.live import LiveState, read_live
from coordinator.history.records import DeviceRecord, LedgerEvent, RoundRecord, Run

EVENTS = 50
"""Newest entries of the audit log."""


@dataclass(frozen=True)
class Look:
    """A run at one moment.

    Attributes:
        is_running: whether a coordinator writes what its devices do.
        rounds: every attempt, in order.
        devices: by id.
        took_s: what the look cost.
    """

    run: Run
    is_running: bool
    deadline_left_s: float
    rounds: tuple[RoundRecord, ...]
    devices: tuple[DeviceView, ...]
    events: tuple[LedgerEvent, ...]
    took_s: float

    @property
    def current(self) -> RoundRecord | None:
        """The newest attempt; None before the first."""
        return self.rounds[-1] if self.rounds else None

    @property
    def committed(self) -> tuple[RoundRecord, ...]:
        """Rounds that are done."""
        return tuple(entry for entry in self.rounds if entry.state == "committed")


class Looker:
    """Looks at the run of ``history``; keeps rounds that are over, so that a look costs what is new."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._settled: list[RoundRecord] = []

    def look(self) -> Look:
        """The run as it is.

        Raises:
            LedgerError: its ledger cannot be read now.
        """
        began = time.monotonic()
        run = self._history.run()
        folder = self._history.folder
        live = None if folder is None else read_live(folder)
        is_running = live is not None and not live.is_stale(time.time()) and run.state != "finished"
        rounds = self._rounds()
        return Look(
            run=run,
            is_running=is_running,
            deadline_left_s=live.deadline_left_s if live is not None and is_running else 0.0,
            rounds=rounds,
            devices=self._devices(live, rounds, is_running=is_running),
            events=self._history.latest_events(EVENTS),
            took_s=time.monotonic() - began,
        )

    def _rounds(self) -> tuple[RoundRecord, ...]:
        since = self._settled[-1].round + 1 if self._settled else 0
        fresh: list[RoundRecord] = []
        while page := self._history.rounds(since):
            fresh += page
            if len(page) < PAGE:
                break
            since = page[-1].round + 1
        # Late counts may still be added to the newest round that is over; those before it stay as they are.
        committed = [entry.round for entry in fresh if entry.state == "committed"]
        last = committed[-1] if committed else -1
        found = (*self._settled, *fresh)
        self._settled += [entry for entry in fresh if entry.round < last]
        return found

    def _devices(
        self, live: LiveState | None, rounds: tuple[RoundRecord, ...], *, is_running: bool
    ) -> tuple[DeviceView, ...]:
        records: dict[str, DeviceRecord] = {}
        after = ""
        while page := self._history.devices(after):
            records |= {record.device: record for record in page}
            after = page[-1].device
        now = {} if live is None or not is_running else {device.device: device for device in live.devices}
        newest = rounds[-1] if rounds else None
        current = 0 if newest is None else newest.round + (newest.state == "committed")
        return tuple(
            view_of(name, records.get(name), now.get(name), is_running=is_running, current_round=current)
            for name in sorted({*records, *now})
        )
