"""What a device was asked today, on disk: bytes and orders of one day by its own clock; a restart forgets none."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec

from edge.contracts.codec import encode_json
from edge.contracts.errors import ConfigError
from edge.system.atomic_files import publish_file, sync

SET_BACK = 2
"""Days by which a clock may be set back without a new account."""


NAMED = 1000
"""Assignments of a day that are kept by name; of more a number is kept, and one that comes again counts again."""


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """One day.

    Attributes:
        date: ``2026-11-23``.
        orders: assignments that were taken, the last :data:`NAMED` of them.
        earlier: how many were taken before those.
        down, up: bytes that were begun to be moved, counted before they are.
        uploaded: assignments whose updates are in ``up``, the last :data:`NAMED` of them.
        cpu_s: processor time of trainings that ended.
    """

    date: str
    orders: tuple[str, ...] = ()
    down: int = 0
    up: int = 0
    uploaded: tuple[str, ...] = ()
    earlier: int = 0
    cpu_s: float = 0.0

    @property
    def order_count(self) -> int:
        """How many were taken."""
        return self.earlier + len(self.orders)


class DayAccount:
    """The account in ``path``; written before what it counts happens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._day = Day(date="")
        try:
            if path.exists():
                self._day = msgspec.json.decode(path.read_bytes(), type=Day)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                [f"--policy: {path} cannot be read ({error}); delete it: the day is counted anew"]
            ) from error

    def of(self, date: str) -> Day:
        """What is counted for ``date``; a clock that was set back by a day or two counts on with the later day.

        One that was years ahead, as after a start without network, was wrong.
        """
        return self._day if date <= self._day.date <= _days_later(date) else Day(date=date)

    def take(self, date: str, assignment: str, down: int) -> None:
        """``assignment`` is taken, and ``down`` bytes are about to be asked for; again for more of its bytes."""
        day = self.of(date)
        orders = day.orders if assignment in day.orders else (*day.orders, assignment)
        earlier = day.order_count + len(orders) - len(day.orders) - len(orders[-NAMED:])
        self._write(msgspec.structs.replace(day, orders=orders[-NAMED:], earlier=earlier, down=day.down + down))

    def upload(self, date: str, assignment: str, up: int) -> None:
        """The update of ``assignment`` is about to be sent; once for each."""
        day = self.of(date)
        if assignment not in day.uploaded:
            uploaded = (*day.uploaded, assignment)[-NAMED:]
            self._write(msgspec.structs.replace(day, up=day.up + up, uploaded=uploaded))

    def work(self, date: str, cpu_s: float) -> None:
        """A training ended that took ``cpu_s`` of the processor."""
        day = self.of(date)
        self._write(msgspec.structs.replace(day, cpu_s=day.cpu_s + cpu_s))

    def _write(self, day: Day) -> None:
        self._day = day
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(encode_json(day))
            sync(file)
        publish_file(temporary, self._path)


def _days_later(date: str) -> str:
    return (datetime.date.fromisoformat(date) + datetime.timedelta(days=SET_BACK)).isoformat()
